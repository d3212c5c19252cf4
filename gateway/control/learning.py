"""What this process learns from the requests it serves: hit rates, the singular budget's use, answer lengths."""

from collections.abc import Callable
from dataclasses import dataclass, field

from policies.alignment import observe_hits
from policies.output_length import Lengths, expected_tokens, observe_length
from policies.rules import Rules
from policies.singular import count_converted, count_request
from policies.types import Alignment, Decision, SingularUse

MOST_TENANTS = 10_000


@dataclass(slots=True)
class Learning:
    """Mutable holder of the policies' pure states. ``clock`` gives monotonic seconds."""

    clock: Callable[[], float]
    _alignment: dict[str, Alignment] = field(default_factory=dict)
    _singular: dict[str, SingularUse] = field(default_factory=dict)
    _lengths: dict[tuple[str, str], Lengths] = field(default_factory=dict)

    def alignment(self, model: str) -> Alignment:
        """How MD's hits compare with P's."""
        return self._alignment.get(model, Alignment())

    def singular(self, model: str) -> SingularUse:
        """How much of the singular budget is used."""
        return self._singular.get(model, SingularUse())

    def expected_output(
        self, model: str, tenant: str, max_tokens: int | None, hint_tokens: int | None, rules: Rules
    ) -> int | None:
        """Length to expect of an answer, in tokens; None: no idea."""
        lengths = self._lengths.get((model, tenant), Lengths())
        return expected_tokens(lengths, max_tokens, hint_tokens, rules.output_length)

    def note_decision(self, decision: Decision, rules: Rules) -> None:
        """Count a decided request."""
        facts, plan, now_s = decision.facts, decision.plan, self.clock()
        self._singular[facts.model] = count_request(
            self.singular(facts.model), plan.kind == "singular", now_s, rules.singular
        )
        if plan.prefill is not None and plan.main is not None:
            self._alignment[facts.model] = observe_hits(
                self.alignment(facts.model),
                facts.prompt_tokens,
                facts.hits.get(plan.prefill),
                facts.hits.get(plan.main),
                now_s,
                rules.alignment,
            )

    def note_converted(self, model: str, rules: Rules) -> None:
        """A relayed request became singular: RLD was first, and the transfer was stopped."""
        self._singular[model] = count_converted(self.singular(model), self.clock(), rules.singular)

    def note_length(self, model: str, tenant: str, tokens: int, rules: Rules) -> None:
        """Count a finished answer; new tenants beyond the bound are not learnt of."""
        key = (model, tenant)
        if key in self._lengths or len(self._lengths) < MOST_TENANTS:
            self._lengths[key] = observe_length(self._lengths.get(key, Lengths()), tokens, rules.output_length)
