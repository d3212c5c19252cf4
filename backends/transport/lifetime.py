"""Processes that must not outlive the one that started them."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent(deadly: signal.Signals = signal.SIGKILL, parent_pid: int | None = None) -> None:
    """Make the kernel send ``deadly`` to this process when the thread that forked it ends. Linux only; else nothing.

    With ``parent_pid`` a parent that is gone already is noticed too: the signal is then raised here and now.
    """
    prctl = getattr(_LIBC, "prctl", None)
    if prctl is None:
        return
    prctl(_PR_SET_PDEATHSIG, int(deadly), 0, 0, 0)
    if parent_pid is not None and os.getppid() != parent_pid:
        os.kill(os.getpid(), deadly)
