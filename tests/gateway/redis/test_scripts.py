"""The Lua files as they are loaded."""

import re
from pathlib import Path

import pytest

from backends.transport.valkey import EmbeddedValkey
from gateway.redis.scripts import SCRIPTS
from tests.valkey import open_client

GATEWAY = Path(__file__).parents[3] / "gateway"


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_a_script_says_what_it_takes(name: str) -> None:
    """Each file begins with a comment that names its keys and arguments, and some code of the gateway runs it."""
    text = (GATEWAY / "redis" / "lua" / f"{name}.lua").read_text()
    head = "".join(line for line in text.splitlines(keepends=True) if line.startswith("--"))
    assert text.startswith(head.splitlines()[0]) and "KEYS:" in head
    room, step = name.split("_", 1)
    sources = "".join(path.read_text() for path in GATEWAY.rglob("*.py"))
    assert f'"{name}"' in sources or (f'"{room}_{{name}}"' in sources and f'"{step}"' in sources)


@pytest.mark.slow
async def test_every_script_compiles(server: EmbeddedValkey) -> None:
    """Redis takes them all."""
    async with open_client(server.url) as client:
        assert all([re.fullmatch("[0-9a-f]{40}", await client.commands.script_load(text)) for text in SCRIPTS.values()])
