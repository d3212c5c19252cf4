"""Replays requests over a fleet, each decided by ``policies.route.choose_plan``, as the gateway decides."""

from collections.abc import Iterable

from policies.output_length import expected_tokens
from policies.plans import Decision
from policies.route import choose_plan
from policies.rules import Rules
from policies.simulator.flow import Outcome, RequestFlow
from policies.simulator.models import Fleet
from policies.simulator.parts import EventQueue
from policies.simulator.report import Report, make_report
from policies.simulator.trace import Row
from policies.simulator.world import MODEL, World
from policies.singular import count_request, observe_hits
from policies.types import Facts, NoInstance, Rng


class Replay:
    """One simulation. Answers' lengths are learnt from answers that ended before, never known ahead."""

    def __init__(self, fleet: Fleet, rules: Rules, rng: Rng) -> None:
        self.rules = rules
        self.rng = rng
        self.timeline = EventQueue()
        self.world = World(fleet, self.timeline)
        self.outcomes: list[Outcome] = []
        self.refused = 0

    def run(self, rows: Iterable[Row]) -> Report:
        """Replay all rows to the end of the last answer."""
        for row in rows:
            self.timeline.plan(row.at_s, lambda row=row: self._arrive(row))  # type: ignore[misc]
        self.timeline.run()
        wan_bytes = sum(crossing.server.served for crossing in self.world.crossings.values())
        return make_report(self.outcomes, self.refused, wan_bytes, self.world.fleet.cost, self.rules.slo)

    def _arrive(self, row: Row) -> None:
        world, rules = self.world, self.rules
        facts = Facts(
            model=MODEL,
            prompt_tokens=row.prompt_tokens,
            hits=world.hits(row),
            predicted_output_tokens=expected_tokens(world.lengths, None, None, rules.output_length),
        )
        try:
            decision = choose_plan(facts, world.snapshot(), rules, self.rng)
        except NoInstance:
            self.refused += 1
            return
        self._count(decision)
        plan = decision.plan
        main_hit = facts.hits[plan.main] if plan.main is not None else None
        reach = 0 if main_hit is None else main_hit.reach_tokens
        outcome = Outcome(row, plan.kind, plan.reason, reach)
        self.outcomes.append(outcome)
        RequestFlow(world, rules, decision, outcome).start()

    def _count(self, decision: Decision) -> None:
        world, rules, plan, facts = self.world, self.rules, decision.plan, decision.facts
        hits = facts.hits
        now_s = self.timeline.now_s
        world.singular = count_request(world.singular, plan.ends_on_relay, now_s, rules.singular)
        if plan.prefill is not None and plan.main is not None:
            world.alignment = observe_hits(
                world.alignment, facts.prompt_tokens, hits[plan.prefill], hits[plan.main], now_s, rules.alignment
            )
