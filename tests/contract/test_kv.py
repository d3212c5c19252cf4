"""What real vLLM 0.32 says of KV that it lends, and a real LMCache 0.5.6 server of itself (see ``record_kv``)."""

import msgspec

from backends.engines.vllm_completions import encode_leg
from backends.engines.vllm_nixl import decode_lending
from backends.kv.lmcache import CacheServer
from backends.types import LegRequest, LegUsage
from tests.contract.prompts import PROMPT, RECORDINGS
from tests.fakes.cache_server import FakeCacheServer

LENT = (RECORDINGS / "lend.json").read_bytes()
STATUS = msgspec.json.decode((RECORDINGS / "lmcache_status.json").read_bytes())


def test_lent_kv() -> None:
    """The answer is one token with its usage, and a ticket that names the engine's own request, not ours."""
    chunk = decode_lending(LENT)
    assert len(chunk.token_ids) == 1 and chunk.finish_reason == "length"
    assert chunk.usage == LegUsage(len(PROMPT), 1, 0)
    assert chunk.kv_ticket is not None and chunk.kv_ticket["do_remote_prefill"] is True
    assert chunk.kv_ticket["remote_request_id"] not in ("", "r1")


def test_ticket_is_sent_on_unread() -> None:
    """Every field of the engine's ticket, known or not, is in the reader's body as it came."""
    ticket = decode_lending(LENT).kv_ticket
    body = msgspec.json.decode(encode_leg(LegRequest("r2", "demo", PROMPT, 1, kv_ticket=ticket)))
    assert body["kv_transfer_params"] == msgspec.json.decode(LENT)["kv_transfer_params"]


async def test_cache_server_status() -> None:
    """The server tells which engines it knows, and an incarnation that is its own."""
    async with FakeCacheServer() as fake:
        fake.status = STATUS
        server = CacheServer(fake.url)
        status = await server.status()
        await server.aclose()
    assert status.engines == 1
    assert status.boot_id == str(STATUS["kv_events"]["incarnation"])
