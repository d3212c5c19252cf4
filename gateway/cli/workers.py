"""Several gateway processes of one ``pdd serve``: they share its addresses and its Redis, and end together.

They are gateways like any others: what must be one for all is in Redis. A worker that ends by itself is started again.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack

import msgspec

from backends.transport.serving import bind_shared, parse_listen, reserve
from gateway.app import PRIVATE_STATE, find_or_run_redis
from gateway.config.settings import Settings, find_redis

log = logging.getLogger(__name__)

BAD_SETTINGS = 2
"""Exit status of a worker that cannot start with these settings, so that starting it again is of no use."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
STEADY_S = 60.0
"""A worker that lived for so long starts again after the first pause."""


class Worker(msgspec.Struct, frozen=True):
    """What a worker is told: its number, its parent, the descriptors of what it inherits, and where the others are."""

    number: int
    parent_pid: int
    listener: int
    admin: int | None
    folder: str


class Supervisor:
    """Keeps ``count`` workers running until ``stop``. ``launch`` starts one by its number."""

    def __init__(
        self,
        launch: Callable[[int], Awaitable[Process]],
        count: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._launch = launch
        self._count = count
        self._clock = clock
        self._running: dict[int, Process] = {}
        self._is_stopping = asyncio.Event()
        self._status = 0

    async def run(self) -> int:
        """Return the exit status once all have ended: that of the first that did not end well when told to."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._count):
                group.create_task(self._keep(number))
        return self._status

    def stop(self) -> None:
        """Tell all to drain and end. May be said again, to those that still run."""
        self._is_stopping.set()
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()

    async def pause(self, wait_s: float) -> None:
        """Wait before a worker starts again, or until all are to end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._is_stopping.wait()

    async def _keep(self, number: int) -> None:
        pause_s, lives = FIRST_PAUSE_S, 0
        while not self._is_stopping.is_set():
            started_s = self._clock()
            status = await self._live(number)
            lives += 1
            if self._is_stopping.is_set():
                # One that is told while Python starts has no handler for it yet.
                if status not in (0, -signal.SIGTERM):
                    self._status = self._status or 1
            elif status == BAD_SETTINGS and lives == 1:
                self._status = status
                self.stop()
            else:
                if self._clock() - started_s >= STEADY_S:
                    pause_s = FIRST_PAUSE_S
                log.error("worker %d ended with status %d; it starts again in %g s", number, status, pause_s)
                await self.pause(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _live(self, number: int) -> int:
        process = self._running[number] = await self._launch(number)
        if self._is_stopping.is_set():
            process.terminate()
        status = await process.wait()
        del self._running[number]
        return status


async def supervise(settings: Settings, options: Sequence[str]) -> int:
    """Run the workers until a signal; the exit status. ``options``: of ``pdd serve``, for each of them."""
    reserved = [reserve(*parse_listen(one)) for one in (settings.listen, settings.admin.listen) if one is not None]
    if find_redis(settings) is None:
        log.warning(PRIVATE_STATE)
    async with find_or_run_redis(settings) as redis_url:
        with tempfile.TemporaryDirectory(prefix="pdd-workers-") as folder:
            environment = {**os.environ, "REDIS_URL": redis_url}

            async def launch(number: int) -> Process:
                with ExitStack() as stack:
                    # Listeners of its own, which end with it: the kernel shares connections out, and evenly so.
                    fds = [stack.enter_context(bind_shared(at)).fileno() for at in reserved]
                    worker = Worker(number, os.getpid(), fds[0], fds[1] if len(fds) > 1 else None, folder)
                    return await asyncio.create_subprocess_exec(
                        *(sys.executable, "-m", "gateway", "serve", *options),
                        *("--worker", msgspec.json.encode(worker).decode()),
                        env=environment,
                        pass_fds=fds,
                        start_new_session=True,  # a Ctrl-C at the terminal is told by this process alone
                    )

            supervisor = Supervisor(launch, settings.workers)
            loop = asyncio.get_running_loop()
            for signum in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(signum, supervisor.stop)
            try:
                return await supervisor.run()
            finally:
                for one in reserved:
                    one.close()


def share_settings(settings: Settings) -> Settings:
    """Return what one of the workers goes by: what a process holds or runs at most is divided among them."""
    count, limits, admission = settings.workers, settings.limits, settings.admission

    def share(whole: int) -> int:
        return -(-whole // count)

    return msgspec.structs.replace(
        settings,
        limits=msgspec.structs.replace(
            limits,
            max_connections=share(limits.max_connections),
            max_bodies_bytes=max(limits.max_body_bytes, share(limits.max_bodies_bytes)),
        ),
        admission=msgspec.structs.replace(
            admission,
            max_running=share(admission.max_running) if admission.max_running else admission.max_running,
            max_waiting=share(admission.max_waiting),
        ),
    )
