"""A simulated KV bridge: blocks cross a line once, however many requests wait for them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from policies.simulator.models import WanLine
from policies.simulator.parts import BlockCache, Callback, ServerWork, SharedServer
from policies.types import LinkView


@dataclass(slots=True)
class SimulatedTransfer:
    """What one request waits for: its own load, and loads of others that carry blocks it wants."""

    on_done: Callback
    own: "Load | None" = None
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


@dataclass(slots=True)
class Crossing:
    """One line, the server that shares its rate, and the store at its end."""

    line: WanLine
    server: SharedServer
    store: BlockCache
    _carrying: dict[int, Load] = field(default_factory=dict)

    def view(self) -> LinkView:
        """What decisions see of it."""
        line, server = self.line, self.server
        queued_bytes = int(server.backlog)
        return LinkView(
            line.source, line.dest, line.rate_bytes_per_s, queued_bytes, line.rtt_s, open_transfers=server.running
        )

    def fetch(self, blocks: Sequence[int], block_bytes: int, on_done: Callback) -> SimulatedTransfer | None:
        """Bring ``blocks``; None: nothing needs to cross, and ``on_done`` will not be called."""
        transfer = SimulatedTransfer(on_done)
        awaited = {id(load): load for block in blocks if (load := self._carrying.get(block)) is not None}
        new = tuple(block for block in blocks if block not in self._carrying and block not in self.store)
        if new:
            own = transfer.own = Load(new, [])
            self._carrying.update(dict.fromkeys(new, own))
            awaited[id(own)] = own
            own.job = self.server.add(float(len(new) * block_bytes), lambda: self._arrive(own))
        if not awaited:
            return None
        transfer.awaited = len(awaited)
        for load in awaited.values():
            load.transfers.append(transfer)
        return transfer

    def stop(self, transfer: SimulatedTransfer) -> None:
        """Give a transfer up; its own load stops where nobody else waits for it."""
        transfer.stopped = True
        load = transfer.own
        if load is not None and load.job is not None and all(other.stopped for other in load.transfers):
            if not load.job.over:
                self.server.remove(load.job)
                self._drop(load)

    def _arrive(self, load: Load) -> None:
        self._drop(load)
        self.store.add(load.blocks)
        for transfer in load.transfers:
            transfer.note_arrival()

    def _drop(self, load: Load) -> None:
        for block in load.blocks:
            del self._carrying[block]
