"""What the tests of the shared state run on."""

from collections.abc import AsyncGenerator

import pytest

from backends.transport.valkey import EmbeddedValkey


@pytest.fixture
async def server() -> AsyncGenerator[EmbeddedValkey, None]:
    """Run a server."""
    async with EmbeddedValkey() as valkey:
        yield valkey
