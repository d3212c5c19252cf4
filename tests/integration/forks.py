"""Engine processes without their seconds of imports: forks of one process that has loaded everything.

Apart from that they are what ``pdd engine`` starts; that command itself is run by ``tests/backends/engines/reference``.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from gateway.demo.cluster import Cluster, ReferenceKit
from gateway.demo.processes import Child

# As the command sets it before it imports anything.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "LMCACHE_LOG_LEVEL": "ERROR",
    "LMCACHE_TRACK_USAGE": "false",
    "HF_HUB_OFFLINE": "1",
}


class Pipe(asyncio.StreamReaderProtocol):
    """The reading end of a pipe."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__(reader)
        self.reader = reader
        self.closed = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell those who wait for it."""
        super().connection_lost(exc)
        self.closed.set()


async def read_pipe(descriptor: int) -> Pipe:
    """Read from a pipe, which is closed at its end."""
    loop = asyncio.get_running_loop()
    pipe = os.fdopen(descriptor, "rb", 0)
    _, protocol = await loop.connect_read_pipe(lambda: Pipe(asyncio.StreamReader()), pipe)
    return protocol


class Forked:
    """As much of ``asyncio.subprocess.Process`` as ``Child`` needs, of a process whose parent is another."""

    def __init__(self, stdout: Pipe, life: Pipe, pid: int) -> None:
        self.stdout = stdout.reader
        self.pid = pid
        self.returncode: int | None = None
        self._end = asyncio.create_task(self._follow(stdout, life))

    async def _follow(self, stdout: Pipe, life: Pipe) -> None:
        self.returncode = int(await life.reader.readline())
        await life.closed.wait()
        await stdout.closed.wait()

    async def wait(self) -> int:
        """Wait until it has ended; its exit status."""
        await asyncio.shield(self._end)
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        """Ask it to end."""
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        os.kill(self.pid, signal.SIGKILL)


class Forker:
    """The process that is forked."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    async def fork(self, arguments: Sequence[str], log: int) -> Forked:
        """Run a ``pdd`` command; ``log`` takes what it writes to stderr."""
        (out, its_out), (life, its_life) = os.pipe(), os.pipe()
        try:
            socket.send_fds(self._control, [json.dumps(list(arguments)).encode()], [its_out, log, its_life])
        finally:
            os.close(its_out)
            os.close(its_life)
        stdout, words = await read_pipe(out), await read_pipe(life)
        return Forked(stdout, words, int(await words.reader.readline()))


@contextmanager
def open_forker() -> Iterator[Forker]:
    """Run the process for the length of the block; its forks end with it."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        command = [sys.executable, "-m", "tests.integration.forker"]
        process = subprocess.Popen(command, stdin=its.fileno(), env=os.environ | ENVIRONMENT)
    try:
        with ours:
            yield Forker(ours)
    finally:
        process.wait(20)


class Fork(Child):
    """An engine that is forked."""

    def __init__(self, name: str, folder: Path, forker: Forker, arguments: Sequence[str]) -> None:
        super().__init__(name, folder, arguments)
        self._forker = forker

    async def _launch(self, log: BinaryIO) -> Process:
        return cast(Process, await self._forker.fork(self._command, log.fileno()))


class ForkedKit(ReferenceKit):
    """The reference engine, forked."""

    def __init__(self, forker: Forker) -> None:
        self._forker = forker

    def engine(self, cluster: Cluster, name: str, listen: str = "127.0.0.1:0") -> Child:
        """See ``EngineKit``."""
        return Fork(name, cluster.folder, self._forker, [*self.arguments(cluster, name, listen), "--die-with-parent"])
