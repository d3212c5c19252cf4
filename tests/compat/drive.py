"""Runs the clients' programs against stands."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.compat.stand import Stand, open_stand
from tests.compat.table import Outcome

ROOT = Path(__file__).resolve().parents[2]
CLIENT_S = 240.0
"""A client that takes longer than this has hung."""


@asynccontextmanager
async def open_stands(families: Sequence[str]) -> AsyncIterator[list[Stand]]:
    """Run a gateway for each family."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        yield [await stack.enter_async_context(open_stand(family, folder / family)) for family in families]


async def run_client(command: Sequence[str | Path], stands: Sequence[Stand]) -> Outcome:
    """Run a client's program to its end."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    urls = json.dumps([stand.url for stand in stands]).encode()
    try:
        said, complaint = await asyncio.wait_for(process.communicate(urls + b"\n"), CLIENT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        return Outcome("", {"start": f"not done after {CLIENT_S:.0f} s"})
    if process.returncode:
        return Outcome("", {"start": complaint.decode(errors="replace")[-400:]})
    told = json.loads(said.splitlines()[-1])
    families = {stand.url: stand.family for stand in stands}
    return Outcome(told["version"], {name: name_family(end, families) for name, end in told["features"].items()})


def name_family(text: str, families: dict[str, str]) -> str:
    """Put the family's name in place of its gateway's URL."""
    for url, family in families.items():
        text = text.replace(url, family)
    return text
