"""What is learnt from the requests that are served: hit rates, the singular budget's use, answer lengths, and
who served a conversation's last turn.

Hit rates and lengths are those of all gateway processes once a ``Ledger`` exchanges them; what this process has seen
counts at once. The singular budget needs no exchange: each process spends only what its own requests earn. A share that
holds in each process holds in their sum, whatever the order of their decisions, also while Redis is away.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gateway.telemetry.metrics import Metrics
from policies.balance import PrefillWork, busy_prefills, observe_prefill
from policies.output_length import Lengths, expected_tokens, merge_lengths, observe_length
from policies.plans import Decision
from policies.rules import AlignmentRules, Rules, SingularRules
from policies.singular import budget_used, count_converted, count_request, fade_factor, observe_hits
from policies.types import Alignment, Facts, InstanceView, SingularUse

TenantKey = tuple[str, str]
"""Model, tenant."""

_NOTHING = Lengths()


@dataclass(frozen=True, slots=True)
class NewLengths:
    """Answers that other processes do not know of; counts from before them weigh ``keep`` beside them."""

    counts: Lengths = _NOTHING
    keep: float = 1.0

    def onto(self, older: Lengths) -> Lengths:
        """Count these answers after those of ``older``."""
        faded = Lengths(tuple(map(self.keep.__mul__, older.counts)), older.samples)
        return merge_lengths(faded, self.counts)

    def after(self, older: "NewLengths") -> "NewLengths":
        """These and the ones before them as one."""
        return NewLengths(self.onto(older.counts), older.keep * self.keep)


@dataclass(frozen=True, slots=True)
class News:
    """What other processes do not know of. A key of ``lengths`` may hold none: then its tenant was only asked for."""

    hits: Mapping[str, Alignment]
    lengths: Mapping[TenantKey, NewLengths]


@dataclass(slots=True)
class Learning:
    """Mutable holder of the policies' pure states. ``clock`` gives monotonic seconds."""

    clock: Callable[[], float]
    most_tenants: int = 10_000
    _alignment: dict[str, Alignment] = field(default_factory=dict)
    _singular: dict[str, SingularUse] = field(default_factory=dict)
    _prefills: dict[str, PrefillWork] = field(default_factory=dict)
    _lengths: dict[TenantKey, Lengths] = field(default_factory=dict)
    _windows_s: dict[str, float] = field(default_factory=dict)
    _new_hits: dict[str, Alignment] = field(default_factory=dict)
    _new_lengths: dict[TenantKey, NewLengths] = field(default_factory=dict)

    def alignment(self, model: str) -> Alignment:
        """How MD's hits compare with P's, over all processes."""
        return self._alignment.get(model, Alignment())

    def alignment_window_s(self, model: str) -> float:
        """Time constant with which a model's hits fade."""
        return self._windows_s.get(model, AlignmentRules().window_s)

    def singular(self, model: str) -> SingularUse:
        """How much this process has used of its share of the singular budget."""
        return self._singular.get(model, SingularUse())

    def show_metrics(self, models: Iterable[str], rules: SingularRules, metrics: Metrics) -> None:
        """Set the gauges of these models; ``rules`` say how large the budget is."""
        for model in models:
            metrics.alignment_gap.labels(model).set(self.alignment(model).gap)
            metrics.singular_used.labels(model).set(budget_used(self.singular(model), rules))

    def lengths(self, model: str, tenant: str) -> Lengths:
        """How long a tenant's answers were, over all processes."""
        return self._lengths.get((model, tenant), _NOTHING)

    def expected_output(
        self, model: str, tenant: str, max_tokens: int | None, hint_tokens: int | None, rules: Rules
    ) -> int | None:
        """Length to expect of an answer, in tokens; None: no idea."""
        key = (model, tenant)
        if self._has_room(key):
            self._new_lengths.setdefault(key, NewLengths())
        return expected_tokens(self.lengths(model, tenant), max_tokens, hint_tokens, rules.output_length)

    def note_decision(self, decision: Decision, rules: Rules) -> None:
        """Count a decided request."""
        facts, plan, now_s = decision.facts, decision.plan, self.clock()
        model = facts.model
        self._singular[model] = count_request(self.singular(model), plan.ends_on_relay, now_s, rules.singular)
        if plan.prefill is None or plan.main is None or decision.stands_in:
            return
        self._windows_s[model] = rules.alignment.window_s
        hits = (facts.prompt_tokens, facts.hits.get(plan.prefill), facts.hits.get(plan.main), now_s, rules.alignment)
        for seen in (self._alignment, self._new_hits):
            seen[model] = observe_hits(seen.get(model, Alignment()), *hits)

    def note_prefill(self, facts: Facts, prefill: InstanceView) -> None:
        """Count what a decided request has P compute."""
        work = self._prefills.get(facts.model, PrefillWork())
        self._prefills[facts.model] = observe_prefill(work, facts, prefill, self.clock())

    def busy_prefills(self, model: str) -> float | None:
        """How many Ps this process's requests keep busy; None: not known."""
        return busy_prefills(self._prefills.get(model, PrefillWork()), self.clock())

    def note_converted(self, model: str, rules: Rules) -> None:
        """A relayed request became singular: RLD was first, and the transfer was stopped."""
        self._singular[model] = count_converted(self.singular(model), self.clock(), rules.singular)

    def note_length(self, model: str, tenant: str, tokens: int, rules: Rules) -> None:
        """Count a finished answer; new tenants beyond the bound are not learnt of."""
        key = (model, tenant)
        if not self._has_room(key):
            return
        limits = rules.output_length
        self._lengths[key] = observe_length(self.lengths(model, tenant), tokens, limits)
        one = NewLengths(observe_length(_NOTHING, tokens, limits), 1 - 1 / limits.memory_samples)
        self._new_lengths[key] = one.after(self._new_lengths.get(key, NewLengths()))

    def take_news(self, most_tenants: int) -> News:
        """Hand out what is to be shared; of the tenants, those that have waited longest."""
        keys = list(self._new_lengths)[:most_tenants]
        news = News(self._new_hits, {key: self._new_lengths.pop(key) for key in keys})
        self._new_hits = {}
        return news

    def put_back(self, news: News) -> None:
        """Take news back that could not be shared."""
        for model, hits in news.hits.items():
            self._new_hits[model] = self._add_hits(model, hits, self._new_hits.get(model, Alignment()))
        newer = self._new_lengths
        older = {key: newer.pop(key, NewLengths()).after(lengths) for key, lengths in news.lengths.items()}
        self._new_lengths = older | newer

    def learn_hits(self, model: str, seen: Alignment) -> None:
        """Take over what all processes have seen, the news handed out last included."""
        self._alignment[model] = self._add_hits(model, seen, self._new_hits.get(model, Alignment()))

    def learn_lengths(self, key: TenantKey, lengths: Lengths) -> None:
        """Take over what all processes have seen, the news handed out last included."""
        if lengths.samples and self._has_room(key):
            self._lengths[key] = self._new_lengths.get(key, NewLengths()).onto(lengths)

    def faded_hits(self, model: str, seen: Alignment) -> Alignment:
        """Bring hits of a model to the present."""
        now_s = self.clock()
        keep = fade_factor(seen.at_s, now_s, self.alignment_window_s(model))
        return Alignment(seen.prompt_tokens * keep, seen.prefill_hit_tokens * keep, seen.main_hit_tokens * keep, now_s)

    def _add_hits(self, model: str, one: Alignment, other: Alignment) -> Alignment:
        one, other = self.faded_hits(model, one), self.faded_hits(model, other)
        return Alignment(
            one.prompt_tokens + other.prompt_tokens,
            one.prefill_hit_tokens + other.prefill_hit_tokens,
            one.main_hit_tokens + other.main_hit_tokens,
            one.at_s,
        )

    def _has_room(self, key: TenantKey) -> bool:
        return key in self._lengths or max(len(self._lengths), len(self._new_lengths)) < self.most_tenants


MOST_SESSIONS = 50_000


class Sessions:
    """The newest sessions of this process, by tenant and the key that the client gave, of which a hash is kept."""

    def __init__(self, most: int = MOST_SESSIONS) -> None:
        self._most = most
        self._kept: OrderedDict[bytes, frozenset[str]] = OrderedDict()

    def served(self, session: str) -> frozenset[str]:
        """Instances of the session's last turn; none for an unknown one."""
        return self._kept.get(shorten(session), frozenset())

    def note(self, session: str, instances: frozenset[str]) -> None:
        """Remember a turn's instances; the oldest session beyond the bound is forgotten."""
        name = shorten(session)
        self._kept[name] = instances
        self._kept.move_to_end(name)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)


def shorten(session: str) -> bytes:
    """Return what stands for a session: clients may name theirs as long as they like."""
    return hashlib.blake2b(session.encode(), digest_size=16).digest()
