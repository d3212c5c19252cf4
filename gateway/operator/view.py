"""What the operator's page shows of one gateway process: sections of named things, as JSON values, without any text."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.auth.identify import OPEN_TENANT
from gateway.fleet.links import Link
from gateway.fleet.pools import Instance
from gateway.limits.usage import HOUR_S, Use, read_usage
from gateway.redis.client import AWAY, RedisClient
from gateway.relay.router import Router
from gateway.status import Status
from gateway.telemetry.timeline import Timeline
from policies.explain import REASONS
from policies.valley import find_valleys

StateSection = Mapping[str, Any]
State = dict[str, StateSection]
"""Sections by name; each has things by id, with JSON values."""

MOST_REQUESTS = 200
POINTS = 60
LEVEL_EVERY, MOST_LEVELS = 30, 120
"""Points between two looks at how level the caches are, and how many of those are kept: an hour's."""
USAGE_AGE_S = 10.0
USAGE_HOURS = 24
MOST_TENANTS = 100
TYPICAL_PROMPT_TOKENS = 8192
"""Whose crossing is estimated for each link."""


TOKENS = {"tokens:P": "p_tokens", "tokens:RLD": "rld_tokens", "tokens:MD": "md_tokens", "tokens:other": "other_tokens"}


@dataclass(slots=True)
class LastMinute:
    """The last minute, a point a second: what was used, bytes by link, and the instances' load."""

    points: deque[dict[str, float]] = field(default_factory=lambda: deque(maxlen=POINTS))
    taken: int = 0
    """Points so far."""
    _last: dict[str, float] = field(default_factory=dict)
    _last_s: float | None = None

    def sample(self, now_s: float, use: Use, links: Iterable[Link], instances: Iterable[Instance]) -> None:
        """Add a point; the first call only begins."""
        totals: dict[str, float] = {name: getattr(use, one) for name, one in TOKENS.items()}
        totals |= {name: getattr(use, name) for name in ("requests", "slo_met", "slo_missed")}
        for link in links:
            if link.state is not None:
                totals[f"wan:{link.name}"] = float(link.state.wan_bytes_total)
        if self._last_s is not None and now_s > self._last_s:
            span_s, last = now_s - self._last_s, self._last
            point: dict[str, float] = {
                name: round(max(0.0, total - last.get(name, total)) / span_s, 2) for name, total in totals.items()
            }
            point |= {f"load:{one.spec.id}": round(_load(one), 3) for one in instances}
            self.points.append(point)
            self.taken += 1
        self._last, self._last_s = totals, now_s


class OperatorView:
    """Makes the page's state. ``redis`` reads what tenants have used; ``clock`` and ``wall`` give seconds."""

    def __init__(
        self,
        status: Status,
        router: Router,
        redis: RedisClient,
        version: str,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._status = status
        self._router = router
        self._redis = redis
        self._version = version
        self._clock = clock
        self._wall = wall
        self._offset_s = wall() - clock()
        self.minute = LastMinute()
        self._levels: dict[str, deque[tuple[float, float, float]]] = {}
        self._usage: dict[str, Any] = {}
        self._usage_s: float | None = None
        self._processes: dict[str, Any] = {}

    async def sample(self) -> None:
        """Add a point to the rates; to be called once a second."""
        self.minute.sample(
            self._clock(), self._status.tenancy.usage.total, self._router.links.all, self._router.pools.instances
        )
        if self.minute.taken % LEVEL_EVERY == 1:
            for name in self._status.served:
                self._note_level(name)

    async def refresh(self) -> None:
        """Read again, now and then, what only Redis knows: other processes, and what tenants have used."""
        now_s = self._clock()
        if self._usage_s is not None and now_s - self._usage_s < USAGE_AGE_S:
            return
        self._usage_s = now_s
        told = await self._status.show_rules()
        self._processes = {
            one.process: {"host": one.host, "pid": one.pid, "revision": one.revision, "refuses": bool(one.refusals)}
            for one in told["processes"] or ()
        }
        try:
            async with self._redis.step():
                self._usage = await self._read_usage()
        except AWAY:
            self._usage = {}

    def state(self) -> State:
        """Return all sections as they are now."""
        timelines = self._status.timelines.recent(MOST_REQUESTS)
        hits = count_hits(timelines)
        return {
            "gateway": {"self": self._gateway()},
            "processes": self._processes,
            "instances": {one.spec.id: self._instance(one, hits) for one in self._router.pools.instances},
            "links": {link.name: self._link(link) for link in self._router.links.all},
            "models": {name: self._model(name) for name in self._status.served},
            "requests": {one.request_id: self._request(one) for one in timelines},
            "usage": self._usage,
        }

    def _note_level(self, model: str) -> None:
        seen = self._router.learning.alignment(model)
        if seen.prompt_tokens > 0:
            level = (seen.prefill_hit_tokens / seen.prompt_tokens, seen.main_hit_tokens / seen.prompt_tokens)
            levels = self._levels.setdefault(model, deque(maxlen=MOST_LEVELS))
            levels.append((round(self._wall()), round(level[0], 4), round(level[1], 4)))

    def _gateway(self) -> dict[str, Any]:
        status = self._status
        return {
            "version": self._version,
            "missing": status.find_missing(),
            "degraded": status.find_degraded(),
            "draining": status.is_draining,
            "redis_up": status.redis.up,
            "gateways": status.ledger.peers + 1,
            "revision": status.live.revision,
            "refusals": [f"{one.name}: {one.reason}" for one in status.live.refusals],
            "waiting": status.tenancy.queues.waiting,
            "aligning": status.aligner.running,
            "price_per_hour": round(sum(_price_per_hour(one) for one in self._router.pools.instances), 4),
        }

    def _instance(self, one: Instance, hits: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
        view, now_s = one.view(self._clock()), self._clock()
        prompt, cached = hits.get(one.spec.id, (0, 0))
        return {
            "role": one.spec.role.value,
            "model": one.spec.model,
            "region": one.spec.region,
            "up": one.usable(now_s),
            "draining": one.draining,
            "why": None if one.usable(now_s) else "draining" if one.draining else one.last_error,
            "running": view.running,
            "waiting": view.waiting,
            "legs": one.in_flight,
            "max_running": one.spec.max_running,
            "kv_usage": round(view.kv_usage, 3),
            "hit_rate": round(cached / prompt, 3) if prompt else None,
            "itl_ms": None if one.itl_s is None else round(one.itl_s * 1000, 1),
            "differs": bool(one.fingerprint),
            "leaks_salts": one.leaks_salts,
        }

    def _link(self, link: Link) -> dict[str, Any]:
        view, models, sizes = link.view(), self._router.models, self._router.sizes
        carried = [name for name in self._status.served if self._router.links.get(*link.route, name) is link]
        typical = max((sizes.of(name, models[name].kv_bytes_per_token) for name in carried), default=0)
        typical *= TYPICAL_PROMPT_TOKENS
        rate = view.rate_bytes_per_s
        return {
            "source": link.source,
            "dest": link.dest,
            "up": view.up,
            "lost": [name for name in carried if not self._status.trust.believes(link.route, name)],
            "kv": {name: link.kv.of(name).at("source", models[name].kv_name).describe() for name in carried},
            "rate_bytes_per_s": round(rate),
            "queued_bytes": view.queued_bytes,
            "open": view.open_transfers,
            "rtt_ms": round(view.rtt_s * 1000, 1),
            "typical_tokens": TYPICAL_PROMPT_TOKENS,
            "typical_s": round((view.queued_bytes + typical) / rate + view.rtt_s, 3) if view.up and rate else None,
        }

    def _model(self, name: str) -> dict[str, Any]:
        learning = self._router.learning
        seen, use = learning.alignment(name), learning.singular(name)
        rules = self._router.rulebook.of("default") if self._router.rulebook.known else None
        prompt = seen.prompt_tokens or 1.0
        curves = {one.spec.id: one.spec.curve for one in self._router.pools.of_model(name) if one.spec.curve}
        return {
            "prefill_hit": round(seen.prefill_hit_tokens / prompt, 4),
            "main_hit": round(seen.main_hit_tokens / prompt, 4),
            "history": list(self._levels.get(name, ())),
            "gap": round(seen.gap, 4),
            "gap_bound": rules.alignment.bound if rules else None,
            "singular_used": round(use.used, 2),
            "singular_total": round(use.total, 2),
            "singular_budget": rules.singular.budget if rules else None,
            "kv_bytes_per_token": self._router.sizes.of(name, self._router.models[name].kv_bytes_per_token),
            "valleys": {
                id_: [[one.from_tokens, one.to_tokens, one.better_tokens] for one in find_valleys(curve)]
                for id_, curve in curves.items()
            },
            "curves": {id_: [curve.tokens, curve.seconds] for id_, curve in curves.items()},
        }

    def _request(self, one: Timeline) -> dict[str, Any]:
        summary = one.summary
        running = "outcome" not in summary
        reason = summary.get("reason")
        joints = [event["gap_s"] for event in one.events if event["event"] == "joint"]
        return {
            "model": one.model,
            "tenant": summary.get("tenant"),
            "plan": summary.get("plan"),
            "reason": reason,
            "why": REASONS.get(reason or ""),
            "at_s": round(one.started_s + self._offset_s, 3),
            "running": running,
            "phase": one.events[-1]["event"] if running and one.events else None,
            "outcome": summary.get("outcome"),
            "tokens": summary.get("tokens"),
            "ttft_s": summary.get("ttft_s", summary.get("first_byte_s")),
            "gap_s": max(joints, default=None),
            "wan_bytes": summary.get("wan_bytes", 0),
            "has_decision": one.decision is not None,
        }

    async def _read_usage(self) -> dict[str, Any]:
        book, hour = self._status.tenancy.book, int(self._wall()) // HOUR_S
        names = [OPEN_TENANT] if book is None else sorted(book.tenants)[:MOST_TENANTS]
        found: dict[str, Any] = {}
        for name in names:
            day = Use()
            for use in (await read_usage(self._redis, name, hour - USAGE_HOURS + 1, hour)).values():
                day.add(use)
            if amounts := day.amounts():
                found[name] = amounts
        return found


def count_hits(timelines: Iterable[Timeline]) -> dict[str, tuple[int, int]]:
    """Return prompt tokens and cached ones among them by instance, as engines told of the legs of these requests."""
    found: dict[str, tuple[int, int]] = {}
    for timeline in timelines:
        legs = {one["leg"]: one["instance"] for one in timeline.events if one["event"] == "leg_started"}
        for one in timeline.events:
            if one["event"] == "leg_usage" and one["leg"] in legs and one["prompt_tokens"]:
                prompt, cached = found.get(legs[one["leg"]], (0, 0))
                found[legs[one["leg"]]] = prompt + one["prompt_tokens"], cached + (one["cached_tokens"] or 0)
    return found


def _load(one: Instance) -> float:
    running = max(one.load.running, one.in_flight) if one.load else one.in_flight
    return (running + (one.load.waiting if one.load else 0)) / one.spec.max_running


def _price_per_hour(one: Instance) -> float:
    return one.spec.cost_per_s * one.spec.max_running * 3600
