"""A simulated KV bridge: blocks cross a line once, however many requests wait for them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from policies.simulator.fleet import IDLE_S, WanLine
from policies.simulator.parts import BlockCache, Callback, ServerWork, SharedServer
from policies.types import LinkView


@dataclass(slots=True)
class SimulatedTransfer:
    """What one request waits for: its own loads, and loads of others that carry blocks it wants.

    ``on_done`` is called each time that nothing is awaited any more.
    """

    on_done: Callback
    own: "list[Load]" = field(default_factory=list)
    awaited: int = 0
    stopped: bool = False

    def note_arrival(self) -> None:
        """One of the awaited loads has arrived."""
        self.awaited -= 1
        if self.awaited == 0 and not self.stopped:
            self.on_done()


@dataclass(slots=True)
class Load:
    """Blocks on their way, and who waits for them."""

    blocks: tuple[int, ...]
    transfers: list[SimulatedTransfer]
    job: ServerWork | None = None
    dropped: bool = False


@dataclass(slots=True)
class Crossing:
    """One line, the server that shares its rate, and the store at its end."""

    line: WanLine
    server: SharedServer
    store: BlockCache
    opened: int = 0
    """Loads so far."""
    _carrying: dict[int, Load] = field(default_factory=dict)
    _idle_since_s: float = -1e9

    def view(self) -> LinkView:
        """What decisions see of it."""
        line, server = self.line, self.server
        queued_bytes = int(server.backlog)
        return LinkView(
            line.source, line.dest, line.rate_bytes_per_s, queued_bytes, line.rtt_s, open_transfers=server.running
        )

    def fetch(self, blocks: Sequence[int], block_bytes: float, transfer: SimulatedTransfer, reuse: bool = True) -> None:
        """Bring ``blocks`` for ``transfer``, which waits for nothing more where they are all there.

        ``reuse`` False: all of them cross, whatever is there or on its way.
        """
        awaited: dict[int, Load] = {}
        new = tuple(blocks)
        if reuse:
            carrying = self._carrying
            lacking = [block for block in blocks if block not in self.store]
            awaited = {id(load): load for block in lacking if (load := carrying.get(block)) is not None}
            new = tuple([block for block in lacking if block not in carrying])
        if new:
            own = Load(new, [])
            transfer.own.append(own)
            if reuse:
                self._carrying.update(dict.fromkeys(new, own))
            awaited[id(own)] = own
            self._send(own, len(new) * block_bytes)
        transfer.awaited += len(awaited)
        for load in awaited.values():
            load.transfers.append(transfer)

    def stop(self, transfer: SimulatedTransfer) -> None:
        """Give a transfer up; its own loads stop where nobody else waits for them."""
        transfer.stopped = True
        for load in transfer.own:
            if not load.dropped and all(other.stopped for other in load.transfers):
                if load.job is not None and not load.job.over:
                    self.server.remove(load.job)
                    self._note_idle()
                self._drop(load)

    def _send(self, load: Load, wan_bytes: float) -> None:
        """Send at once, or after slow start where the line's connections have been idle."""
        timeline, self.opened = self.server.timeline, self.opened + 1

        def begin() -> None:
            if not load.dropped:
                load.job = self.server.add(wan_bytes, lambda: self._arrive(load))

        if not self.server.running and timeline.now_s - self._idle_since_s > IDLE_S and self.line.ramp_s:
            timeline.plan(timeline.now_s + self.line.ramp_s, begin)
        else:
            begin()

    def _note_idle(self) -> None:
        if not self.server.running:
            self._idle_since_s = self.server.timeline.now_s

    def _arrive(self, load: Load) -> None:
        self._note_idle()
        self._drop(load)
        self.store.add(load.blocks)
        for transfer in load.transfers:
            transfer.note_arrival()

    def _drop(self, load: Load) -> None:
        load.dropped = True
        for block in load.blocks:
            if self._carrying.get(block) is load:
                del self._carrying[block]
