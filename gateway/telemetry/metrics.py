"""Prometheus metrics of the gateway. Labels come from the configuration or from fixed sets, never from clients."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

GAUGES = {
    "pdd_instance_up": "Whether new legs may go to an instance",
    "pdd_instance_legs": "This process's legs on an instance",
    "pdd_instance_differs": "Whether canaries showed other tokens than its peers'",
    "pdd_instance_leaks_salts": "Whether canaries showed one salt's KV under another",
    "pdd_instance_load": "Requests in an engine over what it batches at once; above 1 they queue",
}
LINK_GAUGES = {
    "pdd_link_up": "Whether what moves KV over a link answers, and the link with it",
    "pdd_link_rate_bytes_per_second": "Measured rate of a link; the assumed one before anything was measured",
    "pdd_link_assumed_rate_bytes_per_second": "Rate of a link by the settings",
}


class LiveGauges(Collector):
    """Gauges of things that come and go, written anew for each page: none outlives its thing.

    ``values``: for each thing, by its labels, the values of ``gauges`` in their order.
    """

    def __init__(self, gauges: Mapping[str, str], labels: Sequence[str]) -> None:
        self._gauges = gauges
        self.labels = labels
        self.values: Mapping[tuple[str, ...], tuple[float, ...]] = {}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Give all gauges, also when there is nothing."""
        for number, (name, text) in enumerate(self._gauges.items()):
            family = GaugeMetricFamily(name, text, labels=self.labels)
            for labels, values in self.values.items():
                family.add_metric(labels, values[number])
            yield family


SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120)


class PassedMetrics:
    """Of the requests that others answer: upstreams as they are, and external providers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "pdd_passed_requests",
            "Requests that were passed on, by the server they ended at",
            ["server", "path", "outcome"],
            registry=registry,
        )
        self.first_byte = Histogram(
            "pdd_passed_first_byte_seconds",
            "Admission to the first byte of a passed answer",
            ["path"],
            buckets=SECONDS,
            registry=registry,
        )
        self.external_tokens = Counter(
            "pdd_external_tokens", "Tokens that external providers took and gave", ["model", "kind"], registry=registry
        )
        self.external_cost = Counter(
            "pdd_external_cost_usd", "What external providers' answers cost", ["model"], registry=registry
        )
        self.upstream_up = Gauge("pdd_upstream_up", "Whether an upstream answers", ["upstream"], registry=registry)
        self.upstream_requests = Gauge(
            "pdd_upstream_requests", "This process's requests at an upstream", ["upstream"], registry=registry
        )


class SharedMetrics:
    """Of the state that all gateway processes share."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.limits_local = Gauge(
            "pdd_limits_local", "Whether limits are held by this process alone, at its share", registry=registry
        )
        self.redis_up = Gauge(
            "pdd_redis_up", "Whether Redis does in time what this process asks of it", registry=registry
        )
        self.gateways = Gauge("pdd_gateways", "Gateway processes that share the state, this one too", registry=registry)
        self.documents_revision = Gauge(
            "pdd_documents_revision", "Revision of rules, topology and tenants that is in force here", registry=registry
        )
        self.documents_age = Gauge(
            "pdd_documents_age_seconds", "Time since that could last be compared with Redis", registry=registry
        )
        self.documents_refused = Counter(
            "pdd_documents_refused", "Sets of documents that this process could not apply", ["kinds"], registry=registry
        )


class KvMetrics:
    """Of KV that crosses links: how much, whether it was of use, and what is brought into line afterwards."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.wan_bytes = Counter(
            "pdd_wan_bytes", "KV bytes that crossed for this gateway's requests", ["model"], registry=registry
        )
        self.unread = Counter(
            "pdd_kv_unread_tokens",
            "Prompt tokens whose KV had crossed a link and that the receiving engine computed again",
            ["model", "link"],
            registry=registry,
        )
        self.unseen = Counter(
            "pdd_kv_unseen", "Transfers whose first chunk never came to P's store", ["model", "link"], registry=registry
        )
        self.link_trusted = LiveGauges(
            {"pdd_link_trusted": "Whether a model's KV may cross a link; 0 while it was of no use there"},
            ("model", "link"),
        )
        registry.register(self.link_trusted)
        self.links = LiveGauges(LINK_GAUGES, ("link",))
        registry.register(self.links)
        self.aligning = Gauge(
            "pdd_aligning", "Answers whose KV is still being brought to the main region", registry=registry
        )
        self.aligning_dropped = Counter(
            "pdd_aligning_dropped",
            "Answers whose KV was not brought to the main region after all, by why",
            ["reason"],
            registry=registry,
        )

    def count_aligning_dropped(self, reason: str) -> None:
        """Count one answer that MD will not know."""
        self.aligning_dropped.labels(reason).inc()


def keep_children(metrics: object) -> None:
    """Find children by their labels in one look-up: prometheus_client takes a lock and writes the labels anew."""
    for metric in vars(metrics).values():
        if isinstance(metric, Counter | Gauge | Histogram):
            metric.labels = cache(metric.labels)  # type: ignore[assignment, method-assign]


class Metrics:
    """One registry for one gateway."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.instances = LiveGauges(GAUGES, ("instance", "role"))
        registry.register(self.instances)
        self.passed = PassedMetrics(registry)
        self.shared = SharedMetrics(registry)
        self.kv = KvMetrics(registry)
        self.requests = Counter(
            "pdd_requests", "Answers by plan and how they ended", ["model", "plan", "outcome"], registry=registry
        )
        self.decisions = Counter(
            "pdd_decisions", "Plans by their reason", ["model", "plan", "reason"], registry=registry
        )
        self.fused_left = Counter(
            "pdd_fused_left",
            "Answers that a P wrote on and left to an RLD, as it had become busy",
            ["model"],
            registry=registry,
        )
        self.ttft = Histogram(
            "pdd_ttft_seconds",
            "Admission to the first token",
            ["model", "plan"],
            buckets=SECONDS,
            registry=registry,
        )
        self.joint_gap = Histogram(
            "pdd_joint_gap_seconds",
            "Last token of one instance to the first of the next",
            ["model"],
            buckets=SECONDS,
            registry=registry,
        )
        self.tokens = Counter("pdd_tokens", "Tokens that clients got, by role", ["model", "role"], registry=registry)
        self.discarded = Counter(
            "pdd_discarded_tokens", "Tokens that engines made and no client got", ["model"], registry=registry
        )
        self.legs = Counter(
            "pdd_legs", "Engine calls by kind and how they ended", ["kind", "outcome"], registry=registry
        )
        self.in_flight = Gauge("pdd_requests_in_flight", "Answers that are running", ["model"], registry=registry)
        self.canaries = Counter(
            "pdd_canaries", "Checks of a P and a decode instance by what came of them", ["result"], registry=registry
        )
        self.refused = Counter(
            "pdd_refused", "Requests that a limit or the full queue kept out", ["reason"], registry=registry
        )
        self.most_carried = Gauge(
            "pdd_requests_carried_most",
            "Requests that this process takes at once, as its last overload showed; +Inf: it had none",
            registry=registry,
        )
        self.waiting = Gauge("pdd_waiting", "Requests that wait for a free place", registry=registry)
        self.reads_otherwise = LiveGauges(
            {"pdd_reads_otherwise": "1 for each shape of chat that an instance makes another prompt of"},
            ("model", "instance", "shape"),
        )
        registry.register(self.reads_otherwise)
        self.alignment_gap = Gauge(
            "pdd_alignment_gap", "How far MD's cache hit rate is behind P's, 0 to 1", ["model"], registry=registry
        )
        self.wanted = LiveGauges(
            {"pdd_wanted_instances": "Instances that a role should have for what comes, over all gateways"},
            ("model", "role"),
        )
        registry.register(self.wanted)
        self.singular_used = Gauge(
            "pdd_singular_used",
            "Share of the singular budget that this process has used, by the default rules",
            ["model"],
            registry=registry,
        )
        self.spans_sent = Counter("pdd_spans_sent", "Spans that the OpenTelemetry receiver took", registry=registry)
        self.spans_dropped = Counter(
            "pdd_spans_dropped",
            "Spans that found no room, or that the receiver did not take, by which of them",
            ["reason"],
            registry=registry,
        )
        self.unread_arguments = Counter(
            "pdd_unread_tool_arguments",
            "Tool calls in conversations whose arguments were no JSON object and were read as an empty one",
            ["model"],
            registry=registry,
        )

        self.turns = Counter(
            "pdd_turns",
            "Chats that go on, by whether their prompts begin with the exact ids of earlier turns: kept, differs (the "
            "conversation says something else now, or is shown in another way), unknown (no longer or never known)",
            ["model", "result"],
            registry=registry,
        )
        for part in (self, self.passed, self.shared, self.kv):
            keep_children(part)

    def count_turn(self, model: str, result: str) -> None:
        """Count one chat that goes on."""
        self.turns.labels(model, result).inc()

    def count_unread(self, model: str) -> None:
        """Count one tool call of a conversation whose arguments cannot be read."""
        self.unread_arguments.labels(model).inc()

    def exposition(self) -> bytes:
        """Text that Prometheus scrapes."""
        return generate_latest(self.registry)
