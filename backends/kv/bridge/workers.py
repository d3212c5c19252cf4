"""Several processes of one command: they start together and end together."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable

from backends.transport.lifetime import die_with_parent

_ENDING = (signal.SIGTERM, signal.SIGINT)


def run_workers(work: Callable[[int], int], count: int) -> int:
    """Run ``work`` with each number in a process of its own, forked from this one; the exit status.

    Signals that end this process end all. One that ends by itself ends the others, and is told as a failure: whoever
    started this command starts it again, whole.
    """
    me = os.getpid()
    pids = {_fork(work, number, me) for number in range(count)}
    is_told = False

    def tell(*_: object) -> None:
        nonlocal is_told
        is_told = True
        _end(pids)

    for signum in _ENDING:
        signal.signal(signum, tell)
    status = 0
    while pids:
        pid, ended = os.wait()
        pids.discard(pid)
        if not is_told:
            is_told, status = True, 1
            sys.stderr.write(f"pdd: a worker ended with status {os.waitstatus_to_exitcode(ended)}\n")
            _end(pids)
    return status


def _fork(work: Callable[[int], int], number: int, parent_pid: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        die_with_parent(signal.SIGTERM, parent_pid=parent_pid)
        status = work(number)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _end(pids: set[int]) -> None:
    for pid in tuple(pids):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
