"""Whether KV that crosses a link is used on the other side: a link is believed for a model while engines say so.

A transfer can be complete and of no use: with another chunk size, dtype or model name at one side, the receiving engine
looks for other keys and computes the prompt again. Only that engine can tell, by how many prompt tokens it took from a
cache.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from gateway.telemetry.metrics import Metrics
from policies.types import LinkView

log = logging.getLogger(__name__)

Route = tuple[str, str]
"""Source and receiving region of a link."""

STRIKES = 3
"""Answers in a row whose KV was of no use before a link is given up for their model."""
FIRST_WAIT_S = 30.0
LONGEST_WAIT_S = 600.0
WARNING_INTERVAL_S = 60.0


@dataclass(slots=True)
class _Standing:
    """Of one link and model. ``retry_at_s`` None: it is believed. ``on_trial``: one request uses it all the same."""

    strikes: int = 0
    wait_s: float = FIRST_WAIT_S
    retry_at_s: float | None = None
    on_trial: bool = False
    why: str = ""
    warned_s: float | None = None


@dataclass(frozen=True, slots=True, order=True)
class _Use:
    """What is judged by itself: KV under salts has keys of another kind."""

    route: Route
    model: str
    is_salted: bool


class KvTrust:
    """What engines said of KV that crossed, by link and model, and for prompts with a cache salt by themselves.

    A link that is given up is tried again after a wait that doubles each time: one request may use it and decides. One
    that says nothing leaves the decision to another, a wait later.
    """

    def __init__(self, clock: Callable[[], float], metrics: Metrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._standings: dict[_Use, _Standing] = {}

    def believes(self, route: Route, model: str, *, is_salted: bool = False) -> bool:
        """Whether a new request may have KV cross the link."""
        standing = self._standings.get(_Use(route, model, is_salted))
        return standing is None or standing.retry_at_s is None or self._clock() >= standing.retry_at_s

    def mark(self, links: Mapping[Route, LinkView], model: str, *, is_salted: bool = False) -> Mapping[Route, LinkView]:
        """Take the links that are given up for a model as down."""
        lost = [route for route in links if not self.believes(route, model, is_salted=is_salted)]
        return {**links, **{route: replace(links[route], up=False, trusted=False) for route in lost}} if lost else links

    def use(self, route: Route | None, model: str, *, is_salted: bool = False) -> None:
        """A request has KV cross the link: where the link is given up, no other may until that is decided."""
        standing = self._standings.get(_Use(route, model, is_salted)) if route is not None else None
        if standing is not None and standing.retry_at_s is not None:
            standing.retry_at_s = self._clock() + standing.wait_s
            standing.on_trial = True

    def note_read(self, route: Route, model: str, *, is_salted: bool = False) -> None:
        """An engine took KV that had crossed."""
        use = _Use(route, model, is_salted)
        standing = self._standings.get(use)
        if standing is None:
            return
        if standing.retry_at_s is not None:
            log.warning("KV that crosses %s is used again for %s", name_link(route), _name_model(use))
        self._standings[use] = _Standing(warned_s=standing.warned_s)

    def note_unread(
        self,
        route: Route,
        model: str,
        instance: str,
        moved_tokens: int,
        cached_tokens: int,
        *,
        at_once: bool = False,
        is_salted: bool = False,
    ) -> None:
        """An engine computed again what had crossed. ``at_once``: no further one is waited for."""
        self._metrics.kv.unread.labels(model, name_link(route)).inc(moved_tokens - cached_tokens)
        why = (
            f"{instance} took {cached_tokens} prompt tokens from a cache where KV of {moved_tokens} had crossed; "
            "both sides must have the same chunk size, key dialect, dtype, model name and salt"
        )
        self._strike(_Use(route, model, is_salted), why, at_once)

    def note_unseen(
        self, route: Route, model: str, why: str, *, at_once: bool = False, is_salted: bool = False
    ) -> None:
        """P has long ended, and the sending store has none of the keys that its KV should have."""
        self._metrics.kv.unseen.labels(model, name_link(route)).inc()
        self._strike(_Use(route, model, is_salted), why, at_once)

    def note_contradiction(self, route: Route, model: str, why: str, *, salts_only: bool = False) -> None:
        """Keys in the stores are not those that the link moves: nothing of the model crosses until that is mended."""
        for is_salted in (True,) if salts_only else (False, True):
            self._strike(_Use(route, model, is_salted), why, at_once=True, is_told=salts_only or not is_salted)

    def note_odd_size(self, route: Route, model: str, why: str, *, is_salted: bool = False) -> None:
        """What is in P's store is not as large as KV of the model is: it was not moved."""
        self._strike(_Use(route, model, is_salted), why, at_once=False)

    def is_on_trial(self, route: Route, model: str, *, is_salted: bool = False) -> bool:
        """Whether one request has KV cross a link that is given up, to see what comes of it."""
        standing = self._standings.get(_Use(route, model, is_salted))
        return standing is not None and standing.on_trial

    def note_restart(self, region: str, model: str) -> None:
        """An engine process of a region is new: what was wrong with its KV may be mended, so the next request tries."""
        for use, standing in self._standings.items():
            if use.model == model and region in use.route and standing.retry_at_s is not None:
                standing.retry_at_s, standing.wait_s = self._clock(), FIRST_WAIT_S

    def forget(self, route: Route) -> None:
        """Another link leads there now: what was said of the old one is void."""
        self._standings = {use: standing for use, standing in self._standings.items() if use.route != route}

    def list_lost(self, routes: Collection[Route]) -> list[str]:
        """Tell of each of these links that is given up for a model, and why, one line each."""
        lost = {
            use: f"KV over {name_link(use.route)} is not used: {standing.why}"
            for use, standing in sorted(self._standings.items())
            if standing.retry_at_s is not None and use.route in routes
        }
        return [
            f"{_name_model(use)}: {line}"
            for use, line in lost.items()
            if not (use.is_salted and lost.get(replace(use, is_salted=False)) == line)
        ]

    def show_metrics(self, routes: Collection[Route], models: Collection[str]) -> None:
        """Set the gauges of these links and models, and drop all others."""
        lost = {(use.route, use.model) for use, one in self._standings.items() if one.retry_at_s is not None}
        self._metrics.kv.link_trusted.values = {
            (model, name_link(route)): ((route, model) not in lost,) for route in routes for model in models
        }

    def _strike(self, use: _Use, why: str, at_once: bool, is_told: bool = True) -> None:
        now_s = self._clock()
        standing = self._standings.setdefault(use, _Standing())
        is_news, standing.why = why != standing.why, why
        is_due = standing.warned_s is None or now_s >= standing.warned_s + WARNING_INTERVAL_S
        if is_told and (is_due or (at_once and is_news)):
            standing.warned_s = now_s
            log.warning("KV over %s is of no use to %s: %s", name_link(use.route), _name_model(use), why)
        standing.strikes = STRIKES if at_once else standing.strikes + 1
        if standing.retry_at_s is None:
            if standing.strikes < STRIKES:
                return
        elif standing.on_trial:
            standing.wait_s = min(2 * standing.wait_s, LONGEST_WAIT_S)
        elif not at_once:  # it began before the link was given up, and tells nothing new
            return
        standing.on_trial = False
        standing.retry_at_s = now_s + standing.wait_s
        if is_told:
            wait_s = round(standing.wait_s)
            link, model = name_link(use.route), _name_model(use)
            log.warning("%s is taken as down for %s, and tried again in %g s", link, model, wait_s)


def _name_model(use: _Use) -> str:
    return f"{use.model} (with a salt)" if use.is_salted else use.model


def name_link(route: Route) -> str:
    """Name a link in logs and labels."""
    return f"{route[0]}->{route[1]}"
