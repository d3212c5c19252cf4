"""One relayed connection: two ends, each of which sends what it reads across the link to the other."""

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import cast

from backends.transport.wan.lane import Lane, LaneFlow

_WRITE_BUFFER_BYTES = 256 * 1024
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Pipe:
    """A client's connection (``near``) joined with one to the target (``far``)."""

    def __init__(self, up: Lane, down: Lane, on_gone: Callable[["Pipe"], None]) -> None:
        self._on_gone = on_gone
        self.near = PipeEnd(up, down, self._end_gone)
        self.far = PipeEnd(down, up, self._end_gone)
        self.near.join(self.far)
        self.far.join(self.near)

    def refuse(self) -> None:
        """The target cannot be reached."""
        self.far.is_gone = True
        self.near.arrive_reset()

    def break_off(self) -> None:
        """Break both ends at once, as when the link is cut."""
        self.near.arrive_reset()
        self.far.arrive_reset()

    def _end_gone(self) -> None:
        if self.near.is_gone and self.far.is_gone:
            self._on_gone(self)


class PipeEnd(asyncio.Protocol):
    """One end. What is read here crosses on ``lane``; what arrives here came over ``lane_back``."""

    def __init__(self, lane: Lane, lane_back: Lane, on_gone: Callable[[], None]) -> None:
        self._lane = lane
        self._lane_back = lane_back
        self._on_gone = on_gone
        self._transport: asyncio.Transport | None = None
        self._peer = self
        self._broken = False
        self._has_read_end = False
        self._has_sent_end = False
        self.out = LaneFlow(self, self._let_read)
        self.is_gone = False

    def join(self, peer: "PipeEnd") -> None:
        """Make ``peer`` the other end."""
        self._peer = peer
        self.out = LaneFlow(peer, self._let_read)

    def arrive(self, data: memoryview) -> None:
        """Pass on what came from the peer."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def arrive_end(self) -> None:
        """The peer sends no more."""
        if self._transport is None or self._transport.is_closing():
            return
        self._has_sent_end = True
        if self._has_read_end:
            self._transport.close()
        else:
            self._transport.write_eof()

    def arrive_reset(self) -> None:
        """The peer's connection broke, so this one does."""
        self._broken = True
        if self._transport is not None and not self._transport.is_closing():
            handle = self._transport.get_extra_info("socket")
            handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to read once both ends stand."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own are no subclasses
        transport = self._transport
        transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.pause_reading()
        if self._broken:
            self.arrive_reset()
        elif self._peer._transport is not None:
            self._let_read(True)
            self._peer._let_read(True)

    def data_received(self, data: bytes) -> None:
        """Queue what was read."""
        self._lane.feed(self.out, data)

    def eof_received(self) -> bool:
        """Tell the peer after all that was read; stay open while bytes may still arrive here."""
        self._has_read_end = True
        self._lane.end(self.out)
        return not self._has_sent_end

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the peer, unless both directions ended properly or the peer broke first."""
        self.is_gone = True
        if not (self._has_read_end and self._has_sent_end and error is None):
            if self._broken:
                self._lane.drop(self.out)
            else:
                self._lane.reset(self.out)
        self._lane_back.block(self._peer.out, False)
        self._on_gone()

    def pause_writing(self) -> None:
        """This end takes no more for now."""
        self._lane_back.block(self._peer.out, True)

    def resume_writing(self) -> None:
        """This end takes bytes again."""
        self._lane_back.block(self._peer.out, False)

    def _let_read(self, going_on: bool) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if going_on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
