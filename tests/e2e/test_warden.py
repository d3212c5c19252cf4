"""Whatever ends a warden, all that its server started ends too."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gateway.demo.cluster import find_free_ports
from gateway.demo.processes import DemoFailed
from tests.e2e.kit import Group
from tests.integration.regions import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SERVER = """
import http.server, multiprocessing, multiprocessing.shared_memory, pathlib, subprocess, sys
semaphore = multiprocessing.get_context("spawn").Semaphore()
pathlib.Path(sys.argv[2] + ".semaphore").write_text("/dev/shm/sem." + semaphore._semlock.name.lstrip("/"))
segment = multiprocessing.shared_memory.SharedMemory(create=True, size=4096)
pathlib.Path(sys.argv[2] + ".segment").write_text("/dev/shm/" + segment.name)
sleeper = subprocess.Popen(["sleep", "600"])
pathlib.Path(sys.argv[2]).write_text(str(sleeper.pid))
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


def _group(folder: Path) -> Group:
    port = find_free_ports(1)[0]
    command = [sys.executable, "-c", SERVER, str(port), str(folder / "sleeper")]
    return Group("server", folder, f"http://127.0.0.1:{port}", "/", command)


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def _ends(folder: Path) -> bool:
    async def is_gone() -> bool:
        shared = [(folder / f"sleeper.{kind}").read_text() for kind in ("segment", "semaphore")]
        return not _lives(int((folder / "sleeper").read_text())) and not any(map(os.path.exists, shared))

    return await eventually(is_gone, 20.0)


async def _stop(group: Group) -> None:
    await group.stop()


async def _kill(group: Group) -> None:
    group.kill()


async def _kill_warden(group: Group) -> None:
    os.kill(group.pid, signal.SIGTERM)


@pytest.mark.parametrize("end", [_stop, _kill, _kill_warden], ids=lambda end: end.__name__)
async def test_children_end_with_the_server(tmp_path: Path, end: Callable[[Group], Awaitable[None]]) -> None:
    """A server that answered is stopped, killed, or its warden told to end: its own child is gone."""
    group = _group(tmp_path)
    await group.start()
    assert _lives(int((tmp_path / "sleeper").read_text()))
    assert os.path.exists((tmp_path / "sleeper.semaphore").read_text())  # noqa: ASYNC240
    await end(group)
    assert await _ends(tmp_path)
    await group.stop()


async def test_children_end_with_whoever_started_the_warden(tmp_path: Path) -> None:
    """The process that started the warden is killed: server and child go too."""
    port = find_free_ports(1)[0]
    command = [sys.executable, "-m", "tests.e2e.warden", f"http://127.0.0.1:{port}", "/"]
    command += [sys.executable, "-c", SERVER, str(port), str(tmp_path / "sleeper")]
    starter = await asyncio.create_subprocess_exec(
        sys.executable, "-c", f"import subprocess; subprocess.run({command!r})", stdout=PIPE
    )
    assert starter.stdout is not None
    assert b"listening on" in await starter.stdout.readline()
    starter.kill()
    assert await _ends(tmp_path)
    await starter.wait()


async def test_server_that_ends_by_itself_is_told(tmp_path: Path) -> None:
    """A server that fails to start is reported with its last words."""
    group = Group("server", tmp_path, "http://127.0.0.1:1", "/", [sys.executable, "-c", "raise SystemExit('no luck')"])
    with pytest.raises(DemoFailed, match="no luck"):
        await group.start()
