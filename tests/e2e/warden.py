"""Runs a server and all that it starts as one group: tells when it answers, and takes the whole group down with it.

``python -m tests.e2e.warden URL READY_PATH COMMAND...`` prints "listening on URL" once URL + READY_PATH answers 200.
The group ends when the server does, on SIGTERM, and when the process that started the warden is gone.
"""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import FrameType

from backends.transport.lifetime import die_with_parent

GRACE_S = 6.0
POLL_INTERVAL_S = 0.2
ANSWER_TIMEOUT_S = 5.0
SHARED = Path("/dev/shm")
_MAPPED = re.compile(rf" (\d+) +{SHARED}/")
"""Inode of a mapping: the C library opens semaphores under another name than they have in the end."""


def main(url: str, ready_path: str, command: list[str]) -> None:
    """Run ``command`` until it ends or this process is told to end; does not return."""
    parent = os.getppid()
    if os.getsid(0) != os.getpid():
        os.setsid()
    segments: set[Path] = set()
    signal.signal(signal.SIGTERM, _raise_stop)
    die_with_parent(signal.SIGTERM, parent_pid=parent)
    try:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        while server.poll() is None and not _answers(url + ready_path):
            time.sleep(POLL_INTERVAL_S)
        if server.poll() is None:
            sys.stdout.write(f"listening on {url}\n")
            sys.stdout.flush()
            server.wait()
    except _Stopped:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        segments = find_segments(os.getpgrp())
        server.terminate()
        try:
            server.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            pass
    finally:
        for segment in segments | find_segments(os.getpgrp()):
            segment.unlink(missing_ok=True)
        os.killpg(0, signal.SIGKILL)


def find_segments(group: int) -> set[Path]:
    """Files of shared memory that a process group's members use; a member that is killed leaves them behind."""
    inodes: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(folder.name)) == group:
                inodes |= {int(inode) for inode in _MAPPED.findall((folder / "maps").read_text())}
        except OSError:
            continue  # it has ended meanwhile, or is not ours
    return {path for path in SHARED.iterdir() if path.stat().st_ino in inodes} if inodes else set()


class _Stopped(BaseException):
    """SIGTERM came."""


def _raise_stop(signum: int, frame: FrameType | None) -> None:
    raise _Stopped


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_TIMEOUT_S) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
