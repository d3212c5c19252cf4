"""A process that has loaded torch and LMCache, and forks engines. ``tests.integration.forks`` talks to it."""

import gc
import json
import os
import signal
import socket
import sys
from typing import NoReturn

import backends.engines.reference.service  # noqa: F401  # what takes seconds to load
from backends.transport.lifetime import die_with_parent
from tests.integration.odd_engine import run


def serve(control: socket.socket) -> None:
    """Fork for each message, a ``pdd`` command line with the three descriptors of ``_keep``, until nobody sends any."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 3)
        if not message:
            return
        forker_pid = os.getpid()
        if os.fork() == 0:
            control.close()
            _keep(forker_pid, json.loads(message), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _keep(forker_pid: int, arguments: list[str], out: int, log: int, life: int) -> NoReturn:
    """Run the command in a process of its own; write its id to ``life``, and its exit status when it has ended."""
    die_with_parent(signal.SIGKILL, forker_pid)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.close(life)
        for descriptor, standard in ((out, 1), (log, 2)):
            os.dup2(descriptor, standard)
            os.close(descriptor)
        try:
            os._exit(run(arguments))
        finally:  # an exception or sys.exit must not unwind into the forker's own frames
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    os.close(out)
    os.close(log)
    os.write(life, b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    os.write(life, b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


if __name__ == "__main__":
    given = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    gc.collect()
    gc.freeze()
    serve(given)
