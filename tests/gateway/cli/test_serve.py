"""``pdd serve`` as a process, up to the point where it would listen."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
import yaml

from tests.gateway.test_tenancy import BASE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]


async def serve(config: Path, *options: str) -> tuple[int | None, str]:
    """Run it to its end; the exit status and what it said."""
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(config), *options]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    _, said = await process.communicate()
    return process.returncode, said.decode()


async def test_no_start_without_keys_where_others_can_connect(tmp_path: Path) -> None:
    """Without a secret an address that others can reach is refused, with the key's name and what else may be done."""
    config = tmp_path / "gateway.yaml"
    await asyncio.to_thread(config.write_text, yaml.safe_dump(BASE))
    status, said = await serve(config, "--listen", "0.0.0.0:0")
    assert (status, said.startswith("pdd serve: auth.secret_env: ")) == (2, True)
    assert "auth.open: true" in said
