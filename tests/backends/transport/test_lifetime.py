"""Tests of processes that must not outlive the one that started them."""

import asyncio
import signal
import sys

import pytest

pytestmark = [pytest.mark.slow]

CHILD = """
import os, signal, sys
from backends.transport.lifetime import die_with_parent
die_with_parent(parent_pid=int(sys.argv[1]) or os.getppid())
print("bound", flush=True)
signal.pause()
"""
PARENT = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {CHILD!r}, "0"])
"""


async def test_a_child_ends_with_a_killed_parent() -> None:
    """Killing the parent outright closes the child's end of their shared output."""
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    assert await parent.stdout.readline() == b"bound\n"
    parent.send_signal(signal.SIGKILL)
    async with asyncio.timeout(10):
        assert await parent.stdout.read() == b""
        await parent.wait()


async def test_a_parent_that_is_gone_already_is_noticed() -> None:
    """A process whose parent is no longer the one it expects ends at once."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, "999999999", stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    async with asyncio.timeout(10):
        assert await child.stdout.read() == b""
        assert await child.wait() == -signal.SIGKILL
