"""What one gateway process shows of itself: whether it is ready, its metrics, requests and rules."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST

from gateway.api.admin import Pages
from gateway.config.live import LiveDocuments
from gateway.config.rulebook import RULES, RuleBook
from gateway.fleet.canaries import CanaryWatch
from gateway.fleet.kv_sizes import KvSizes
from gateway.fleet.kv_trust import KvTrust
from gateway.fleet.learning import Learning
from gateway.fleet.ledger import Ledger
from gateway.fleet.links import Links
from gateway.fleet.pools import Instance, Pools
from gateway.fleet.reading import Readings
from gateway.fleet.topology import TOPOLOGY
from gateway.passthrough.endpoint import PassthroughService
from gateway.redis.client import SharedRedis
from gateway.relay.align import Aligner
from gateway.telemetry.loop import LoopWatch
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.siblings import METRICS, REQUESTS, TIMELINE, Siblings
from gateway.telemetry.timeline import Timelines
from gateway.tenancy import Tenancy
from gateway.text.model import ServedModel
from policies.balance import wanted_instances
from policies.types import Role


@dataclass(slots=True)
class Status:
    """``served``: the models by name. ``siblings``: other workers. ``is_draining``: no more requests are wanted."""

    served: Mapping[str, ServedModel]
    readings: Readings
    pools: Pools
    links: Links
    trust: KvTrust
    sizes: KvSizes
    canaries: CanaryWatch
    aligner: Aligner
    passing: PassthroughService
    redis: SharedRedis
    ledger: Ledger
    learning: Learning
    live: LiveDocuments
    rulebook: RuleBook
    tenancy: Tenancy
    loop_watch: LoopWatch
    timelines: Timelines
    metrics: Metrics
    siblings: Siblings | None = None
    is_draining: bool = False

    @property
    def pages(self) -> Pages:
        """The operator's pages."""
        return Pages(
            find_missing=self.find_missing,
            find_timeline=self.find_timeline,
            render_metrics=self.render_metrics,
            show_rules=self.show_rules,
            list_requests=self.list_requests,
            find_degraded=self.find_degraded,
            siblings=self.siblings,
        )

    def answer_sibling(self, question: str) -> bytes:
        """Tell another worker what only this one knows."""
        if question == METRICS:
            return self.render_metrics()[0]
        if question.startswith(REQUESTS):
            return msgspec.json.encode(self.list_requests(int(question.removeprefix(REQUESTS))))
        found = self.find_timeline(question.removeprefix(TIMELINE))
        return b"" if found is None else msgspec.json.encode(found)

    def find_missing(self) -> list[str]:
        """What keeps a model from being served: its instances that cannot take legs, where a role has none that can."""
        now_s = self.pools.clock()
        missing = ["the gateway is shutting down"] if self.is_draining else []
        if not self.rulebook.known:
            missing.append(f"rules: {self.live.find_unread(RULES)}")
        missing += self.tenancy.find_missing()
        for model in self.served:
            for role in (Role.P, Role.MD):
                filled = [i for i in self.pools.of_model(model) if i.spec.role is role]
                if not filled and role is Role.MD:
                    missing.append(f"{model}: no {role} instance is configured")
                elif not any(instance.usable(now_s) for instance in filled):
                    missing += [_describe(instance) for instance in filled]
        return missing

    def find_degraded(self) -> list[str]:
        """What is not as it should be though requests can be served."""
        unknown = [name for name, model in self.served.items() if model.context.known_tokens is None]
        lines = [f"{name}: no engine tells max_model_len; set models[].context_tokens" for name in unknown]
        lines += self.readings.list_differing() + self.canaries.list_odd() + self.sizes.list_odd(self.served)
        return lines + self.trust.list_lost({link.route for link in self.links.all})

    def find_timeline(self, request_id: str) -> Mapping[str, Any] | None:
        """Return a request's timeline, or those of its choices, as JSON values."""
        found = self.timelines.find(request_id)
        if len(found) > 1:
            return {"request_id": request_id, "choices": [timeline.as_dict() for timeline in found]}
        return found[0].as_dict() if found else None

    def list_requests(self, most: int) -> list[Mapping[str, Any]]:
        """Return the newest requests in short, newest first, as JSON values."""
        return [timeline.in_short() for timeline in self.timelines.recent(most)]

    async def show_rules(self) -> Mapping[str, Any]:
        """Return which documents are in force here, and what other processes say, as JSON values."""
        return await self.live.describe(RULES, TOPOLOGY)

    def render_metrics(self) -> tuple[bytes, str]:
        """Return the metrics page and its content type; gauges are set now."""
        now_s = self.pools.clock()
        self.metrics.instances.values = {
            (one.spec.id, one.spec.role.value): (
                one.usable(now_s),
                one.in_flight,
                bool(one.fingerprint),
                one.leaks_salts,
                one.view(now_s).load,
            )
            for one in self.pools.instances
        }
        self.metrics.reads_otherwise.values = {
            (model, id_, shape): (1.0,)
            for model in self.served
            for id_, shapes in self.readings.differing(model).items()
            for shape in shapes
        }
        self.metrics.wanted.values = {
            (model, role.value): (count,)
            for model in self.served
            for role, count in wanted_instances(self.pools.views(model), self._busy_prefills(model)).items()
        }
        self.trust.show_metrics({link.route for link in self.links.all}, self.served)
        self.links.show_metrics(self.metrics)
        if self.rulebook.known:
            self.learning.show_metrics(self.served, self.rulebook.of("default").singular, self.metrics)
        for upstream in self.passing.servers.upstreams:
            self.metrics.passed.upstream_up.labels(upstream.id).set(upstream.reachable)
            self.metrics.passed.upstream_requests.labels(upstream.id).set(upstream.in_flight)
        self.metrics.shared.redis_up.set(self.redis.up)
        self.metrics.shared.gateways.set(self.ledger.peers + 1)
        self.metrics.shared.documents_revision.set(self.live.revision)
        if self.live.contact_age_s is not None:
            self.metrics.shared.documents_age.set(self.live.contact_age_s)
        self.metrics.kv.aligning.set(self.aligner.running)
        self.tenancy.show_metrics()
        self.loop_watch.show_metrics()
        return self.metrics.exposition(), CONTENT_TYPE_LATEST

    def _busy_prefills(self, model: str) -> float | None:
        """Over all gateways, which have about as many requests each."""
        own = self.learning.busy_prefills(model)
        return None if own is None else own * (self.ledger.peers + 1)


def _describe(instance: Instance) -> str:
    spec = instance.spec
    why = "draining" if instance.draining else instance.last_error
    return f"{spec.model}: {spec.role} {spec.id} at {spec.shown_url}: {why}"
