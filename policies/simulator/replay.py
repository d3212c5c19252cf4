"""Replays requests over a fleet, each decided by ``policies.route.choose_plan``, as the gateway decides."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from policies.balance import PrefillWork, busy_prefills, observe_prefill, wanted_instances
from policies.output_length import expected_tokens
from policies.plans import Decision
from policies.route import choose_plan
from policies.rules import Rules
from policies.simulator.agents import AgentTraffic
from policies.simulator.arrivals import wait_s
from policies.simulator.fleet import Fleet
from policies.simulator.flow import Outcome, RequestFlow
from policies.simulator.parts import EventQueue
from policies.simulator.report import Report, make_report
from policies.simulator.trace import Row
from policies.simulator.world import MODEL, World
from policies.singular import count_request, observe_hits
from policies.types import Facts, NoInstance, Rng, Role

SAMPLES = 200
"""Looks at the fleet in one simulation, evenly over its requests."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The fleet at one moment."""

    at_s: float
    relay_load: float
    """Mean over RLD instances."""
    main_load: float
    wan_bytes: float
    """Crossed so far."""
    gap: float
    """Of P's and MD's hit rates."""
    wanted: Mapping[Role, float] = field(default_factory=dict)
    """Instances that each role should have."""


class Replay:
    """One simulation. Answers' lengths are learnt from answers that ended before, never known ahead."""

    def __init__(self, fleet: Fleet, rules: Rules, rng: Rng, warm: Iterable[Sequence[int]] = ()) -> None:
        self.rules = rules
        self.rng = rng
        self.timeline = EventQueue()
        self.world = World(fleet, self.timeline)
        self.world.warm(warm)
        self.outcomes: list[Outcome] = []
        self.samples: list[Sample] = []
        self.refused = 0
        self._prefills = PrefillWork()
        self._every = 1

    def run(self, rows: Iterable[Row], tick: Callable[[], None] = lambda: None) -> Report:
        """Replay all rows (in order of time) to the end of the last answer; ``tick`` is called for each."""
        ordered = sorted(rows, key=lambda row: row.at_s)
        self._every = max(1, len(ordered) // SAMPLES)
        self._await_next(iter(ordered), tick)
        self.timeline.run()
        return self.report()

    def run_closed(self, agents: AgentTraffic, running: int, pause_s: float, requests: int) -> Report:
        """Let ``running`` agents ask ``requests`` times in all, each again some ``pause_s`` after it was answered."""
        left = requests
        self._every = max(1, requests // SAMPLES)
        numbers: dict[str, int] = {}

        def ask(number: int) -> None:
            nonlocal left
            if left:
                left -= 1
                session = agents.find(number)
                numbers[session.name] = number
                if not self._arrive(agents.turn(session, self.timeline.now_s)):
                    again(number)

        def again(number: int) -> None:
            self.timeline.plan(self.timeline.now_s + wait_s(self.rng, pause_s), lambda: ask(number))

        self.world.on_end = lambda row: again(numbers[str(row.session)])
        for number in range(min(running, agents.sessions)):
            again(number)
        self.timeline.run()
        return self.report()

    def report(self, settle: int = 0, itl_s: float | None = None) -> Report:
        """Sum up what has been simulated, without the first ``settle`` requests.

        ``itl_s``: mean time between tokens that is promised.
        """
        world, counted = self.world, self.outcomes[settle:]
        share = len(counted) / max(1, len(self.outcomes))
        wan_bytes = sum(crossing.server.served for crossing in world.crossings.values()) * share
        return make_report(counted, self.refused, wan_bytes, world.fleet.cost, self.rules.slo, itl_s)

    def _await_next(self, rows: Iterator[Row], tick: Callable[[], None]) -> None:
        row = next(rows, None)
        if row is None:
            return

        def come() -> None:
            self._await_next(rows, tick)
            self._arrive(row)
            tick()

        self.timeline.plan(row.at_s, come)

    def _arrive(self, row: Row) -> bool:
        """Decide a request and start it; False: nobody can serve it."""
        world, rules = self.world, self.rules
        if len(self.outcomes) % self._every == 0:
            self._sample()
        facts = Facts(
            model=MODEL,
            prompt_tokens=row.prompt_tokens,
            hits=world.hits(row),
            predicted_output_tokens=expected_tokens(world.lengths, None, None, rules.output_length),
            session=row.session,
        )
        try:
            decision = choose_plan(facts, world.snapshot(), rules, self.rng)
        except NoInstance:
            self.refused += 1
            return False
        self._count(decision)
        plan = decision.plan
        reach = {role: hit.reach_tokens if (hit := facts.hits[id_]) else 0 for role, id_ in plan.roles.items()}
        outcome = Outcome(row, plan.kind, plan.reason, reach.get(Role.MD, 0), reach.get(Role.P, 0))
        self.outcomes.append(outcome)
        RequestFlow(world, rules, decision, outcome).start()
        return True

    def _count(self, decision: Decision) -> None:
        world, rules, plan, facts = self.world, self.rules, decision.plan, decision.facts
        hits = facts.hits
        now_s = self.timeline.now_s
        world.singular = count_request(world.singular, plan.ends_on_relay, now_s, rules.singular)
        if plan.prefill is not None:
            self._prefills = observe_prefill(self._prefills, facts, world.sites[plan.prefill].view(), now_s)
        if plan.prefill is not None and plan.main is not None:
            world.alignment = observe_hits(
                world.alignment, facts.prompt_tokens, hits[plan.prefill], hits[plan.main], now_s, rules.alignment
            )

    def _sample(self) -> None:
        world = self.world
        views = [site.view() for site in world.sites.values()]

        def load(role: Role) -> float:
            loads = [view.load for view in views if view.role is role]
            return sum(loads) / len(loads) if loads else 0.0

        served = sum(crossing.server.done for crossing in world.crossings.values())
        now_s, gap = self.timeline.now_s, world.alignment.gap
        wanted = wanted_instances(views, busy_prefills(self._prefills, now_s))
        self.samples.append(Sample(now_s, load(Role.RLD), load(Role.MD), served, gap, wanted))
