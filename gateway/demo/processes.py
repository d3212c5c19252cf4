"""Child processes of the demo: each tells where it listens, and none outlives the demo."""

import asyncio
import contextlib
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 10.0
LISTENING = re.compile(r"listening on (https?://\S+)")


class DemoFailed(Exception):
    """The demo cannot go on; the message is for the user."""


def pdd(*arguments: str) -> list[str]:
    """Command line of a ``pdd`` command that ends with the process that starts it."""
    return [sys.executable, "-m", "gateway", *arguments, "--die-with-parent"]


class Child:
    """One process that tells ``listening on URL``; ``command`` must make it end with the process that starts it.

    ``url`` is known once it is started; ``log`` holds what it wrote to stderr.
    """

    def __init__(self, name: str, folder: Path, command: Sequence[str], patience_s: float = START_TIMEOUT_S) -> None:
        self.name = name
        self.url = ""
        self.log = folder / f"{name}.log"
        self._command = command
        self._patience_s = patience_s
        self._process: Process | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """Process id; only of a started child."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start it and wait until it listens. Raises DemoFailed."""
        with self.log.open("wb") as log:
            self._process = await self._launch(log)
        try:
            async with asyncio.timeout(self._patience_s):
                self.url = await self._find_url(self._process)
        except TimeoutError:
            await self.stop()
            raise DemoFailed(f"{self.name} did not listen within {self._patience_s:g} s") from None
        self._reading = asyncio.create_task(self._discard(self._process))

    async def _launch(self, log: BinaryIO) -> Process:
        # In a session of its own: a terminal's Ctrl-C is for the demo, which then ends its children one by one.
        return await asyncio.create_subprocess_exec(
            *self._command, stdin=DEVNULL, stdout=PIPE, stderr=log, start_new_session=True
        )

    async def stop(self) -> None:
        """End it. Idempotent."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                self.kill()
                await process.wait()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    def kill(self) -> None:
        """End it without a word, as a crash would."""
        assert self._process is not None
        self._process.kill()

    async def wait(self) -> int:
        """Wait until it has ended; its exit status."""
        assert self._process is not None
        return await self._process.wait()

    async def _find_url(self, process: Process) -> str:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            found = LISTENING.search(line.decode(errors="replace"))
            if found:
                return found[1]
        status = await process.wait()
        raise DemoFailed(f"{self.name} ended with status {status}: {_last_words(self.log)}")

    async def _discard(self, process: Process) -> None:
        assert process.stdout is not None
        while await process.stdout.read(65536):
            pass


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
