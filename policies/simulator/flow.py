"""The life of one simulated request, from its plan to its last token."""

from dataclasses import dataclass

from policies.handoff import FinalNow, Handoff, choose_step
from policies.output_length import observe_length
from policies.plans import Decision
from policies.rules import Rules
from policies.simulator.crossing import SimulatedTransfer
from policies.simulator.parts import ServerWork
from policies.simulator.trace import Row
from policies.simulator.world import SimulatedInstance, World
from policies.singular import count_converted, relay_finished_first


@dataclass(slots=True)
class Outcome:
    """What became of one request. Times are None until they come."""

    row: Row
    kind: str
    reason: str
    main_hit_tokens: int
    first_s: float | None = None
    end_s: float | None = None
    gap_s: float = 0.0
    """Silence at the joint: KV awaited and extend, between the token before and the token after."""
    prefill_tokens: int = 0
    relay_tokens: int = 0
    main_tokens: int = 0

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token; None: none came."""
        return None if self.first_s is None else self.first_s - self.row.at_s


@dataclass(slots=True)
class RequestFlow:
    """Runs one request. Every method without arguments is an event."""

    world: World
    rules: Rules
    decision: Decision
    outcome: Outcome
    made_tokens: int = 0
    sealed_tokens: int = 0
    rounds: int = 0
    previous_pending_tokens: int | None = None
    relay_job: ServerWork | None = None
    transfer: SimulatedTransfer | None = None
    silent_since_s: float | None = None
    prefilled: bool = False
    moved: bool = False
    ready: bool = False

    def start(self) -> None:
        """The plan is made: call P, or MD where it does all."""
        plan, row = self.decision.plan, self.outcome.row
        alone = self._main if plan.prefill is None else None
        site = alone or self.world.sites[str(plan.prefill)]
        hit = self.decision.facts.hits[site.member.id]
        uncached = row.prompt_tokens - (hit.reach_tokens if hit else 0)
        if alone:
            site.compute(uncached, self._continue_on_main)
        else:
            site.compute(uncached, self._end_prefill, self._open_transfer)

    @property
    def _now_s(self) -> float:
        return self.world.timeline.now_s

    @property
    def _main(self) -> SimulatedInstance:
        return self.world.sites[str(self.decision.plan.main)]

    def _open_transfer(self) -> None:
        plan, world = self.decision.plan, self.world
        if plan.main is None:
            return
        if plan.link is None:
            self.moved = True
            return
        fleet, row = world.fleet, self.outcome.row
        full = row.blocks[: row.prompt_tokens // fleet.block_tokens]
        block_bytes = fleet.block_tokens * fleet.kv_bytes_per_token
        self.transfer = world.crossings[plan.link].fetch(full, block_bytes, self._end_transfer)
        self.moved = self.transfer is None

    def _end_transfer(self) -> None:
        self.transfer, self.moved = None, True
        self._await_kv()

    def _end_prefill(self) -> None:
        plan, outcome, world = self.decision.plan, self.outcome, self.world
        site = world.sites[str(plan.prefill)]
        site.cache.add(outcome.row.blocks)
        world.stores[site.member.region].add(outcome.row.blocks)
        self.prefilled = True
        if not plan.classic:
            self.made_tokens = outcome.prefill_tokens = 1
            outcome.first_s = self.silent_since_s = self._now_s
        if self.made_tokens == outcome.row.output_tokens:
            self._finish()
        elif plan.relay is not None:
            relay = world.sites[plan.relay]
            relay.cache.add(outcome.row.blocks)
            self.relay_job = relay.decode.add(outcome.row.output_tokens - 1, self._end_relay)
        self._await_kv()

    def _await_kv(self) -> None:
        if self.prefilled and self.moved:
            link = self.decision.plan.link
            rtt_s = 0.0 if link is None else self.world.crossings[link].line.rtt_s
            self.world.timeline.plan(self._now_s + rtt_s, self._take_kv)

    def _take_kv(self) -> None:
        blocks = self.outcome.row.blocks
        self.world.stores[self._main.member.region].add(blocks)
        self._main.cache.add(blocks)
        self.ready = True
        if self.relay_job is not None:
            self._step()
        elif self.outcome.end_s is None:
            self._main.compute(self._tail_tokens + self.made_tokens, self._continue_on_main)

    def _step(self) -> None:
        """Ask for the next step of the hand-off."""
        plan = self.decision.plan
        if self.relay_job is None or plan.relay is None:
            return
        relay = self.world.sites[plan.relay]
        output = self.outcome.row.output_tokens
        self.made_tokens = min(output - 1, int(output - relay.decode.left(self.relay_job)))
        pending = self.made_tokens - self.sealed_tokens
        is_cold = self.rounds == 0
        handoff = Handoff(pending, self.rounds, self.previous_pending_tokens, is_cold)
        step = choose_step(handoff, relay.view().load, None, self.rules.handoff)
        tail = 0 if self.rounds else self._tail_tokens
        if isinstance(step, FinalNow):
            relay.decode.remove(self.relay_job)
            self.relay_job, self.silent_since_s = None, self._now_s
            self.outcome.relay_tokens = self.made_tokens - 1
            self._main.compute(pending + tail, self._continue_on_main)
        else:
            self.sealed_tokens += min(step.tokens, pending)
            self.rounds, self.previous_pending_tokens = self.rounds + 1, None if is_cold else pending
            self._main.compute(step.tokens + tail, self._step)

    def _continue_on_main(self) -> None:
        self.outcome.main_tokens = self.outcome.row.output_tokens - self.made_tokens
        self._main.cache.add(self.outcome.row.blocks)
        self._main.decode.add(self.outcome.main_tokens, self._finish, self._start_main)

    def _start_main(self) -> None:
        if self.silent_since_s is None:
            self.outcome.first_s = self._now_s + self._main.member.engine.step_s
        else:
            self.outcome.gap_s = self._now_s - self.silent_since_s

    def _finish(self) -> None:
        row, lengths = self.outcome.row, self.rules.output_length
        self.outcome.end_s = self._now_s
        self.world.lengths = observe_length(self.world.lengths, row.output_tokens, lengths)

    def _end_relay(self) -> None:
        plan, row = self.decision.plan, self.outcome.row
        self.relay_job = None
        self.made_tokens, self.outcome.relay_tokens = row.output_tokens, row.output_tokens - 1
        self._finish()
        if plan.link is None or self.transfer is None:
            return
        facts, snapshot = self.decision.facts, self.world.snapshot()
        if relay_finished_first(plan, facts, row.output_tokens, snapshot, self.rules).stop_transfer:
            self.world.crossings[plan.link].stop(self.transfer)
            self.transfer = None
            self.outcome.kind, self.outcome.reason = "singular", "singular_live"
            self.world.singular = count_converted(self.world.singular, self._now_s, self.rules.singular)

    @property
    def _tail_tokens(self) -> int:
        estimate = self.decision.estimate
        return 0 if estimate is None else estimate.tail_tokens
