"""Models and engine instances as the gateway knows them: what they are, whether they live, how loaded they are."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import msgspec

from backends.base import Engine
from backends.errors import BackendError, EngineRejected, EngineUnavailable, IdsMissing
from backends.transport.address import without_credentials
from backends.types import Capabilities, EngineLoad, KvShape, LegRequest
from gateway.fleet.blame import Blame, Charges, Culprit
from gateway.text.context import ContextLength
from policies.types import InstanceView, Role
from policies.valley import PrefillCurve

NEWEST_SHARE = 0.2
"""Weight of the newest measurement in what was learnt of an instance."""
QUARANTINE_FIRST_S = 0.5
QUARANTINE_MOST_S = 15.0
FAILURES_TO_QUARANTINE = 2
MOST_BUSY_S = 60.0
MOST_QUARANTINED = 0.5
"""Share of a role's instances."""


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """Where an instance stands: from the configuration, never from clients.

    ``cost_per_s``: of one of its ``max_running`` places. ``takes_priority``: its scheduler knows priorities.
    """

    id: str
    role: Role
    model: str
    region: str
    url: str = field(repr=False)
    max_running: int
    curve: PrefillCurve | None = None
    api_key: str | None = field(default=None, repr=False)
    """The engine's own key, never a client's."""
    cost_per_s: float = 0.0
    takes_priority: bool = False
    data_parallel_size: int | None = None
    """Its data-parallel ranks; None: as many as it tells."""

    @property
    def shown_url(self) -> str:
        """``url`` without credentials."""
        return without_credentials(self.url)


@dataclass(slots=True)
class Instance:
    """One instance and its live state. ``in_flight`` counts this process's own legs; it survives health cycles."""

    spec: InstanceSpec
    engine: Engine
    capabilities: Capabilities | None = None
    load: EngineLoad | None = None
    reachable: bool = False
    last_error: str = "not asked yet"
    in_flight: int = 0
    rank_legs: Counter[int] = field(default_factory=Counter)
    """``in_flight`` by data-parallel rank."""
    extending_tokens: int = 0
    """What this process's legs that wait for their first token have it compute."""
    draining: bool = False
    charges: Charges = field(default_factory=Charges)
    quarantined_until_s: float = 0.0
    busy_until_s: float = 0.0
    """When it wants to be asked again, as it said itself."""
    extend_tokens_per_s: float | None = None
    itl_s: float | None = None
    fingerprint: str = ""
    """Other than "" for one whose greedy ids differ from what its peers make of the same prompt."""
    leaks_salts: bool = False
    """It took KV of one cache salt for a prompt with another."""
    held_until_s: float = 0.0
    """Until then it waits for its first canary: it answers whole requests, and nobody shares KV with it."""
    stuck: bool = False
    """Its canaries take too long, though its peers' do not."""
    _on_idle: Callable[[], object] | None = None
    _seen: tuple[object, ...] = ()
    _view: InstanceView | None = None

    @contextmanager
    def occupied(self, rank: int | None = None) -> Iterator[None]:
        """Count one leg as running on this instance, and on a data-parallel rank of it."""
        self.in_flight += 1
        if rank is not None:
            self.rank_legs[rank] += 1
        try:
            yield
        finally:
            self.in_flight -= 1
            if rank is not None:
                self.rank_legs[rank] -= 1
            self._tell_idle()

    @property
    def data_parallel_size(self) -> int:
        """How many ranks a leg may be given to; 1: none is named."""
        told = self.capabilities.data_parallel_size if self.capabilities else 1
        return self.spec.data_parallel_size or told

    def rank_loads(self) -> list[float]:
        """Requests in each rank over what it batches at once, as ``InstanceView.load`` has it for all of them."""
        size = self.data_parallel_size
        told = self.load.rank_requests if self.load else ()
        requests = told if len(told) == size else (0,) * size
        return [max(count, self.rank_legs[rank]) * size / self.spec.max_running for rank, count in enumerate(requests)]

    def retire(self, on_idle: Callable[[], object]) -> None:
        """Take no more legs; ``on_idle`` is called once none runs, now or later."""
        self.draining, self.reachable, self.last_error = True, False, "removed"
        self._on_idle = on_idle
        self._tell_idle()

    def _tell_idle(self) -> None:
        if self._on_idle is not None and self.in_flight == 0:
            on_idle, self._on_idle = self._on_idle, None
            on_idle()

    def fit(self, leg: LegRequest) -> LegRequest:
        """Leave out of a leg what this engine would refuse."""
        return leg if leg.priority is None or self.spec.takes_priority else msgspec.structs.replace(leg, priority=None)

    def note_extend(self, tokens: int, took_s: float) -> None:
        """Learn how fast it recomputes tokens in an extend, the way there and back included."""
        if tokens > 0 and took_s > 0:
            self.extend_tokens_per_s = _blend(self.extend_tokens_per_s, tokens / took_s)

    def note_decode(self, tokens: int, took_s: float) -> None:
        """Learn the time between two tokens from a leg's first token to its last."""
        if tokens > 1 and took_s > 0:
            self.itl_s = _blend(self.itl_s, took_s / (tokens - 1))

    @property
    def failures(self) -> int:
        """Failures since its last token that are held against it."""
        return self.charges.weight

    def forgive(self) -> None:
        """Whatever was wrong is over."""
        self.charges.clear()
        self.quarantined_until_s = 0.0

    def alive(self, now_s: float) -> bool:
        """Whether legs may go to it of requests that were given to it before."""
        return self.reachable and now_s >= self.quarantined_until_s

    def usable(self, now_s: float) -> bool:
        """Whether new requests may go to it."""
        return self.alive(now_s) and not self.draining and now_s >= self.busy_until_s

    def is_apart(self, now_s: float) -> bool:
        """Whether it may share no answer with others, as nothing is known yet of its tokens and its KV."""
        return self.stuck or now_s < self.held_until_s

    def view(self, now_s: float) -> InstanceView:
        """The immutable picture that policies see; the same one while nothing changes, as decisions ask very often."""
        seen = (
            self.reachable and now_s >= self.quarantined_until_s,
            self.draining or now_s < self.busy_until_s,
            self.in_flight,
            self.load,
            self.capabilities,
            self.itl_s,
            self.fingerprint,
            self.is_apart(now_s),
            self.leaks_salts,
        )
        if self._view is None or self._seen != seen:
            self._seen, self._view = seen, self._make_view(now_s)
        return self._view

    def _make_view(self, now_s: float) -> InstanceView:
        load = self.load or EngineLoad(0, 0, 0.0)
        capabilities = self.capabilities
        return InstanceView(
            id=self.spec.id,
            role=self.spec.role,
            model=self.spec.model,
            region=self.spec.region,
            healthy=self.alive(now_s),
            draining=self.draining or now_s < self.busy_until_s,
            running=max(load.running, self.in_flight),
            waiting=load.waiting,
            kv_usage=load.kv_usage,
            max_running=self.spec.max_running,
            max_model_len=capabilities.max_model_len if capabilities else None,
            itl_s=self.itl_s,
            curve=self.spec.curve,
            fingerprint=f"?{self.spec.id}" if self.is_apart(now_s) else self.fingerprint,
            judged=not self.is_apart(now_s),
            streams_ids=capabilities.streams_token_ids if capabilities else True,
            leaks_salts=self.leaks_salts,
        )


@dataclass(slots=True)
class Pools:
    """All instances. ``clock`` gives monotonic seconds."""

    instances: Sequence[Instance]
    clock: Callable[[], float]
    _by_id: dict[str, Instance] = field(init=False)
    _blame: Blame[Instance] = field(init=False, default_factory=Blame)

    def __post_init__(self) -> None:
        self._by_id = {instance.spec.id: instance for instance in self.instances}

    def replace(self, instances: Sequence[Instance]) -> None:
        """Offer other instances from now on. Those that leave are still found by id: requests may run there."""
        self.instances = instances
        self._by_id = self._by_id | {instance.spec.id: instance for instance in instances}

    def __getitem__(self, instance_id: str) -> Instance:
        return self._by_id[instance_id]

    def of_model(self, model: str) -> list[Instance]:
        """Instances that serve a model, whatever their state."""
        return [instance for instance in self.instances if instance.spec.model == model]

    def context_lengths(self, model: str) -> list[int]:
        """What a model's engines tell of the most tokens that they take; a plan may use any of them."""
        found = [one.capabilities for one in self.instances if one.spec.model == model]
        return [known.max_model_len for known in found if known is not None and known.max_model_len]

    def places(self, model: str) -> int:
        """Answers that all MD instances of a model batch at once."""
        return sum([one.spec.max_running for one in self.of_model(model) if one.spec.role is Role.MD])

    def views(self, model: str) -> tuple[InstanceView, ...]:
        """What policies see of a model's instances."""
        now_s = self.clock()
        return tuple([i.view(now_s) for i in self.instances if i.spec.model == model])

    def report_success(self, instance: Instance) -> None:
        """A leg got its first token: whatever was wrong is over."""
        instance.forgive()

    def report_worked(self, instance: Instance, culprit: Culprit) -> None:
        """A leg went well as long as it was wanted: had it failed elsewhere, the request was not to blame."""
        for other in self._blame.note_worked(instance, instance.spec.role.value, culprit):
            self._judge(other)

    def report_failure(self, instance: Instance, error: BackendError, culprit: Culprit | None = None) -> None:
        """A leg failed; failures that are the instance's own take it out for a while.

        Refusals of the request are not its fault, and one that says when to come back is busy, not broken. One that
        lost ids is known by it until its next probe. ``culprit``: whose leg it was, see ``gateway.fleet.blame``.
        """
        if isinstance(error, EngineRejected):
            return
        if isinstance(error, EngineUnavailable) and error.retry_after_s is not None:
            self._spare(instance, error.retry_after_s)
            return
        if isinstance(error, IdsMissing) and instance.capabilities is not None:
            instance.capabilities = replace(instance.capabilities, streams_token_ids=False)
        instance.last_error = str(error)
        for one in self._blame.note_failure(instance, instance.spec.role.value, culprit):
            self._judge(one)

    def _spare(self, instance: Instance, retry_after_s: float) -> None:
        """Give an instance no new requests until it wants some, if another one can take them meanwhile."""
        now_s, spec = self.clock(), instance.spec
        if any(
            one.usable(now_s) and one.spec.role is spec.role and one is not instance
            for one in self.of_model(spec.model)
        ):
            instance.busy_until_s = now_s + min(retry_after_s, MOST_BUSY_S)

    def _judge(self, instance: Instance) -> None:
        """Take an instance out, or let it in again, by what is held against it."""
        if instance.failures < FAILURES_TO_QUARANTINE:
            instance.quarantined_until_s = 0.0
        elif self._may_leave(instance):
            wait_s = QUARANTINE_FIRST_S * 2 ** (instance.failures - FAILURES_TO_QUARANTINE)
            instance.quarantined_until_s = self.clock() + min(wait_s, QUARANTINE_MOST_S)

    def _may_leave(self, instance: Instance) -> bool:
        """Say whether others of its role can do without it: no more than half of those that answer probes are out.

        So whatever requests do, the last one that answers its own probe stays.
        """
        now_s, spec = self.clock(), instance.spec
        peers = [
            one
            for one in self.of_model(spec.model)
            if one.spec.role is spec.role and one.reachable and not one.draining and one is not instance
        ]
        out = sum(not one.alive(now_s) for one in peers)
        return out + 1 <= (len(peers) + 1) * MOST_QUARANTINED


def _blend(known: float | None, seen: float) -> float:
    return seen if known is None else known + NEWEST_SHARE * (seen - known)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a plan needs to know of a model beside its engines."""

    kv_bytes_per_token: int
    context: ContextLength
    cache_effective: bool
    kv_name: str
    """What the KV stores call it."""
    kv_shape: KvShape | None = None
    """How its KV is cut among ranks; None where that does not follow from its config.json."""
    kv_groups: tuple[int | None, ...] = (None,)
    """Groups of layers as LMCache may keep them apart: how many of the last tokens each needs, None: all."""


def store_id(region: str, model: str) -> str:
    """Name under which the index knows a model's part of a region's KV store."""
    return f"store:{region}:{model}"
