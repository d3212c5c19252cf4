"""Runs one of our commands as a process of its own, as a test's or benchmark's subject."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from backends.kv.bridge.resp import StoreAddress

_START = """
import argparse, importlib, sys
command = importlib.import_module(sys.argv[1])
parser = argparse.ArgumentParser()
command.add_arguments(parser)
sys.exit(command.run(parser.parse_args(sys.argv[2:])))
"""


@dataclass(frozen=True, slots=True)
class Running:
    """A command that listens at ``urls``; ``routes`` are the ports that a link told of before."""

    process: asyncio.subprocess.Process
    urls: list[str]
    routes: list[int]

    @property
    def url(self) -> str:
        """The first address that it told."""
        return self.urls[0]


@asynccontextmanager
async def run_command(module: str, *arguments: str, listeners: int = 1) -> AsyncGenerator[Running, None]:
    """Start ``module``'s command, wait until it listens, and end it with the block, by force if need be.

    ``listeners``: how many addresses it tells.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _START, module, *arguments, "--die-with-parent", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    routes: list[int] = []
    urls: list[str] = []
    try:
        async with asyncio.timeout(15):
            while len(urls) < listeners:
                line = (await process.stdout.readline()).decode()
                if line.startswith("listening on "):
                    urls.append(line.split()[-1])
                else:
                    assert line.startswith("route "), f"{module} ended before it listened"
                    routes.append(int(line.split()[1].rpartition(":")[2]))
        yield Running(process, urls, routes)
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(5):
                    await process.wait()
            except TimeoutError:
                process.kill()
        await process.wait()


def through(store_url: str, port: int) -> str:
    """The address of a store as it is reached through a relay's port."""
    return f"redis://127.0.0.1:{port}/{StoreAddress.parse(store_url).database}"
