"""The path through a bridge keeps to what every KV path promises."""

from collections.abc import AsyncIterator
from itertools import count

import pytest

from backends.kv.bridge.client import BridgePath
from backends.kv.bridge.server import make_app
from backends.kv.bridge.types import ChunkId
from backends.types import TransferRequest
from tests.backends.kv.bridge.chunks import CHUNK_TOKENS, chunks_of, prompt, store
from tests.backends.kv.bridge.regions import two_regions
from tests.conformance.kv_path_suite import KvPathCase, KvPathSuite
from tests.fakes.server import AppServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]


class TestConformance(KvPathSuite):
    """``BridgePath`` conforms, over a bridge between two real stores."""

    @pytest.fixture
    async def case(self) -> AsyncIterator[KvPathCase]:
        """KV that is withheld is not in the source's store yet."""
        seeds, withheld = count(1), list[ChunkId]()
        is_withholding = False
        async with two_regions() as regions, AppServer(make_app(regions.mover)) as server:
            async with AppServer(make_app(regions.mover)) as away:
                gone = BridgePath(away.url)
            path = BridgePath(server.url)

            async def ask(chunks: int) -> TransferRequest:
                seed = next(seeds)
                token_ids = prompt(chunks, seed)
                if is_withholding:
                    withheld.extend(chunks_of(token_ids))
                else:
                    await store(regions.a, chunks_of(token_ids))
                return TransferRequest(f"t{seed}", "lmcache", "demo", token_ids, CHUNK_TOKENS)

            def withhold() -> None:
                nonlocal is_withholding
                is_withholding = True

            async def provide() -> None:
                await store(regions.a, withheld)

            async def idle() -> None:
                while regions.mover.transfers:
                    await path.link()

            yield KvPathCase(path, gone, ask, withhold, provide, idle)
            await path.aclose()
            await gone.aclose()
