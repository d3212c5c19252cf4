"""The life of one simulated request, from its plan to its last token."""

from dataclasses import dataclass, field

from policies.handoff import FinalNow, Handoff, choose_step
from policies.output_length import observe_length
from policies.plans import Decision
from policies.rules import Rules
from policies.simulator.crossing import SimulatedTransfer
from policies.simulator.engine import Job
from policies.simulator.parts import Callback
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
    prefill_hit_tokens: int = 0
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

    @property
    def itl_s(self) -> float | None:
        """Mean time between tokens after the first; None: there is but one."""
        if self.first_s is None or self.end_s is None or self.row.output_tokens < 2:
            return None
        return (self.end_s - self.first_s) / (self.row.output_tokens - 1)


@dataclass(slots=True, repr=False)
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
    relay_job: Job | None = None
    transfer: SimulatedTransfer | None = None
    silent_since_s: float | None = None
    prefilled: bool = False
    aligns: bool = False
    """RLD ended first, and MD is still to have the KV."""
    _early: int = field(default=0, init=False)
    """Blocks whose transfer began before P's end."""

    def start(self) -> None:
        """The plan is made: call P, or MD where it does all."""
        plan, row, world = self.decision.plan, self.outcome.row, self.world
        alone = self._main if plan.prefill is None else None
        site = alone or world.sites[str(plan.prefill)]
        hit = self.decision.facts.hits[site.member.id]
        reach, own = (hit.reach_tokens, hit.tokens) if hit else (0, 0)
        uncached = max(1, row.prompt_tokens - reach)
        if alone:
            job = Job(row.prompt_tokens, uncached, row.output_tokens, self._finish, on_prefilled=self._start_alone)
        else:
            job = Job(row.prompt_tokens, uncached, 0, self._end_prefill, on_start=self._open_transfer)
        self._after(site.load_s(reach - own, world.fleet.kv_bytes_per_token), lambda: site.engine.submit(job))

    @property
    def _now_s(self) -> float:
        return self.world.timeline.now_s

    @property
    def _main(self) -> SimulatedInstance:
        return self.world.sites[str(self.decision.plan.main)]

    @property
    def _full_blocks(self) -> int:
        return self.outcome.row.prompt_tokens // self.world.fleet.block_tokens

    @property
    def _rtt_s(self) -> float:
        """Of the way to MD's region and back: to hear that KV is there, and again to call MD and hear its token."""
        link = self.decision.plan.link
        return 0.0 if link is None else self.world.crossings[link].line.rtt_s

    def _call_main(self, job: Job) -> None:
        self._after(self._rtt_s, lambda: self._main.engine.submit(job))

    def _after(self, wait_s: float, action: Callback) -> None:
        if wait_s > 0:
            self.world.timeline.plan(self._now_s + wait_s, action)
        else:
            action()

    def _open_transfer(self) -> None:
        """P begins: what it has stored by then, and what it stores before its last chunk, can cross."""
        plan, fleet = self.decision.plan, self.world.fleet
        if plan.main is None or plan.link is None:
            return
        self.transfer = SimulatedTransfer(self._await_kv)
        if fleet.overlap == "chunk" and plan.prefill is not None:
            hit = self.decision.facts.hits[plan.prefill]
            uncached = self.outcome.row.prompt_tokens - (hit.reach_tokens if hit else 0)
            budget = self.world.sites[plan.prefill].member.engine.budget_tokens
            last = uncached % budget or min(uncached, budget)
            self._fetch(max(0, self.outcome.row.prompt_tokens - last) // fleet.block_tokens)

    def _fetch(self, end: int) -> None:
        plan, fleet = self.decision.plan, self.world.fleet
        if self.transfer is None or plan.link is None or end <= self._early:
            return
        block_bytes = fleet.block_tokens * fleet.kv_bytes_per_token * fleet.wire_share
        blocks = self.outcome.row.blocks[self._early : end]
        self.world.crossings[plan.link].fetch(blocks, block_bytes, self.transfer, fleet.delta_only)
        self._early = end

    def _end_prefill(self) -> None:
        plan, outcome, world = self.decision.plan, self.outcome, self.world
        site = world.sites[str(plan.prefill)]
        site.cache.add(outcome.row.blocks)
        world.stores[site.member.region].add(outcome.row.blocks)
        self.prefilled = True
        if not plan.classic:
            self.made_tokens = outcome.prefill_tokens = 1
            self.silent_since_s = self._now_s
            if world.fleet.shows_first or outcome.row.output_tokens == 1:
                outcome.first_s = self._now_s
        self._fetch(self._full_blocks)
        if self.made_tokens == outcome.row.output_tokens:
            self._finish()
        elif plan.fused:
            # its prompt's KV is where it writes: the job computes nothing but its next tokens
            self._relay_on(site, 0.0)
        elif plan.relay is not None:
            relay = world.sites[plan.relay]
            self._relay_on(relay, relay.load_s(outcome.row.prompt_tokens, world.fleet.kv_bytes_per_token))
        self._await_kv()

    def _relay_on(self, relay: SimulatedInstance, load_s: float) -> None:
        row = self.outcome.row
        job = self.relay_job = Job(
            row.prompt_tokens + 1, 0, row.output_tokens - 1, self._end_relay, on_prefilled=self._start_relay
        )
        self._after(load_s, lambda: relay.engine.submit(job))

    def _start_relay(self) -> None:
        relay = self.world.sites[str(self.decision.plan.writer)]
        relay.cache.add(self.outcome.row.blocks)
        if self.outcome.first_s is None:
            self.outcome.first_s = self._now_s + relay.engine.itl_s

    def _await_kv(self) -> None:
        """Something has arrived or P has ended: go on once there is nothing more to wait for."""
        plan, world = self.decision.plan, self.world
        if not self.prefilled or plan.main is None or (self.transfer is not None and self.transfer.awaited):
            return
        row, main = self.outcome.row, self._main
        missing = row.prompt_tokens - main.cache.reach(row.blocks) * world.fleet.block_tokens
        self.transfer = None
        self._after(self._rtt_s + main.load_s(max(0, missing), world.fleet.kv_bytes_per_token), self._take_kv)

    def _take_kv(self) -> None:
        row, main = self.outcome.row, self._main
        if self.world.fleet.delta_only:
            self.world.stores[main.member.region].add(row.blocks)
            main.cache.add(row.blocks)
        if self.relay_job is not None:
            self._step()
        elif self.outcome.end_s is None:
            self._hand_over(self._tail_tokens + self.made_tokens)
        elif self.aligns:
            extend = max(1, self._tail_tokens + row.output_tokens)
            main.engine.submit(Job(row.prompt_tokens + row.output_tokens, extend, 0, self._end_align))

    def _step(self) -> None:
        """Ask for the next step of the hand-off."""
        plan = self.decision.plan
        if self.relay_job is None or plan.writer is None:
            return
        relay = self.world.sites[plan.writer]
        output = self.outcome.row.output_tokens
        self.made_tokens = min(output - 1, 1 + int(relay.engine.made(self.relay_job)))
        pending = self.made_tokens - self.sealed_tokens
        is_cold = self.rounds == 0
        handoff = Handoff(pending, self.rounds, self.previous_pending_tokens, is_cold)
        step = choose_step(handoff, relay.view().load, 1.0 / self._main.member.engine.token_s, self.rules.handoff)
        tail = 0 if self.rounds else self._tail_tokens
        if isinstance(step, FinalNow):
            relay.engine.stop(self.relay_job)
            self.relay_job = None
            if self.made_tokens > 1:
                self.silent_since_s = self._now_s
            self._note_eager()
            self._hand_over(pending + tail)
        else:
            self.sealed_tokens += min(step.tokens, pending)
            self.rounds, self.previous_pending_tokens = self.rounds + 1, None if is_cold else pending
            context = self.outcome.row.prompt_tokens + self.sealed_tokens
            self._call_main(Job(context, step.tokens + tail, 0, self._step))

    def _hand_over(self, extend_tokens: int) -> None:
        """Let MD compute what it lacks, and make the rest of the answer."""
        row = self.outcome.row
        self.outcome.main_tokens = row.output_tokens - self.made_tokens
        context = row.prompt_tokens + self.made_tokens
        extend = min(context, max(1, extend_tokens))
        self._call_main(Job(context, extend, self.outcome.main_tokens, self._finish, on_prefilled=self._start_main))

    def _start_alone(self) -> None:
        self.outcome.main_tokens = self.outcome.row.output_tokens
        self._main.cache.add(self.outcome.row.blocks)
        self.world.stores[self._main.member.region].add(self.outcome.row.blocks)
        self._start_main()

    def _start_main(self) -> None:
        if self.outcome.first_s is None:
            self.outcome.first_s = self._now_s + self._main.engine.itl_s
        elif self.silent_since_s is not None:
            self.outcome.gap_s = self._now_s - self.silent_since_s

    def _finish(self) -> None:
        row, plan, world = self.outcome.row, self.decision.plan, self.world
        self.outcome.end_s = self._now_s
        world.lengths = observe_length(world.lengths, row.output_tokens, self.rules.output_length)
        if row.session is not None:
            world.sessions[row.session] = plan.instances
        world.on_end(row)

    def _note_eager(self) -> None:
        """What was made is P's first token and what the writer made after it."""
        if self.decision.plan.fused:
            self.outcome.prefill_tokens = self.made_tokens
        else:
            self.outcome.relay_tokens = self.made_tokens - 1

    def _end_relay(self) -> None:
        plan, row, world = self.decision.plan, self.outcome.row, self.world
        self.relay_job = None
        self.made_tokens = row.output_tokens
        self._note_eager()
        self._finish()
        if plan.link is None or self.transfer is None:
            return
        facts, snapshot = self.decision.facts, world.snapshot()
        if relay_finished_first(plan, facts, row.output_tokens, snapshot, self.rules).stop_transfer:
            self._stop_transfer()
            self.outcome.kind, self.outcome.reason = "singular", "singular_live"
            world.singular = count_converted(world.singular, self._now_s, self.rules.singular)
        elif world.aligning >= world.fleet.align_jobs:
            self._stop_transfer()
            world.dropped += 1
        else:
            world.aligning += 1
            self.aligns = True

    def _end_align(self) -> None:
        self.world.aligning -= 1

    def _stop_transfer(self) -> None:
        plan = self.decision.plan
        if self.transfer is not None and plan.link is not None:
            self.world.crossings[plan.link].stop(self.transfer)
        self.transfer = None

    @property
    def _tail_tokens(self) -> int:
        estimate = self.decision.estimate
        return 0 if estimate is None else estimate.tail_tokens
