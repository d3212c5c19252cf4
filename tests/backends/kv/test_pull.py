"""Tests of the KV paths on which engines fetch KV themselves, over fake engines."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from itertools import count

import pytest

from backends.base import Engine
from backends.engines.vllm import VllmEngine
from backends.errors import TransferFailed
from backends.kv.pull import EnginePull, NixlPull
from backends.types import TransferRequest
from tests.conformance.kv_path_suite import KvPathCase, KvPathSuite, read
from tests.fakes.engine import FakeEngine
from tests.fakes.gates import HoldGate
from tests.fakes.loans import Loans
from tests.fakes.script import Cut, Script

CHUNK_TOKENS = 16
PROMPT = list(range(100, 140))
REQUEST = TransferRequest(
    "t-1", "", "kv-name", PROMPT, CHUNK_TOKENS, "salt", served_model="demo", prefill="p1", main="md1"
)

Find = Callable[[str], Engine]


@pytest.fixture
async def fakes() -> AsyncIterator[dict[str, FakeEngine]]:
    """P and MD, which lend each other KV; and one that has gone."""
    loans = Loans()
    async with AsyncExitStack() as stack:
        fakes = {name: await stack.enter_async_context(FakeEngine(name, loans=loans)) for name in ("p1", "md1")}
        async with FakeEngine("gone") as gone:
            fakes["gone"] = gone
        yield fakes


@pytest.fixture
async def find(fakes: dict[str, FakeEngine]) -> AsyncIterator[Find]:
    """The adapters of the fakes by id."""
    adapters = {name: VllmEngine(name, fake.url) for name, fake in fakes.items()}
    yield adapters.__getitem__
    for adapter in adapters.values():
        await adapter.aclose()


class PullCase(KvPathSuite):
    """The suite over a path between P and MD."""

    path_type: type[EnginePull]
    gate: HoldGate

    @pytest.fixture
    async def case(self, fakes: dict[str, FakeEngine], find: Find) -> KvPathCase:
        """A new prompt for each request; MD's first token waits for the KV."""
        seeds = count()

        async def ask(chunks: int) -> TransferRequest:
            first = 100 + 50 * next(seeds)
            prompt = [first + number % 40 for number in range(chunks * CHUNK_TOKENS + 3)]
            return TransferRequest("t", "", "m", prompt, CHUNK_TOKENS, served_model="demo", prefill="p1", main="md1")

        def withhold() -> None:
            self.gate = HoldGate()
            fakes["md1"].script = Script(holds={0: self.gate})

        async def provide() -> None:
            self.gate.open()

        async def idle() -> None:
            for name in ("p1", "md1"):
                await fakes[name].idle()

        gone = self.path_type(lambda id_: find("gone"))
        return KvPathCase(self.path_type(find), gone, ask, withhold, provide, idle)


class TestEnginePull(PullCase):
    """``EnginePull`` conforms."""

    path_type = EnginePull


class TestNixlPull(PullCase):
    """``NixlPull`` conforms."""

    path_type = NixlPull


async def test_the_warm_leg_is_the_prompt_and_one_greedy_token(fakes: dict[str, FakeEngine], find: Find) -> None:
    """MD is asked for the bare prompt under the engines' name of the model, with the client's salt."""
    await read(EnginePull(find), REQUEST)
    call = fakes["md1"].calls[0]
    assert call.prompt == PROMPT
    assert (call.body["max_tokens"], call.body["temperature"]) == (1, 0.0)
    assert (call.body["model"], call.body["cache_salt"]) == ("demo", "salt")
    assert "kv_transfer_params" not in call.body and not fakes["p1"].calls


async def test_nixl_asks_p_for_a_ticket_of_its_own(fakes: dict[str, FakeEngine], find: Find) -> None:
    """P is asked to lend the prompt's KV, whole and with one token; MD gets what P said, unread, with that prompt."""
    await read(NixlPull(find), REQUEST)
    asked, warm = fakes["p1"].calls[0].body, fakes["md1"].calls[0].body
    assert asked["prompt"] == warm["prompt"] == PROMPT
    assert asked["stream"] is False and "stream_options" not in asked and "min_tokens" not in asked
    assert (asked["max_tokens"], asked["cache_salt"]) == (1, "salt")
    params = asked["kv_transfer_params"]
    assert (params["do_remote_decode"], params["do_remote_prefill"]) == (True, False)
    assert all(params[name] is None for name in ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))
    loans = fakes["p1"].loans
    assert loans is not None and loans.redeemed == ["p1-0"] and not loans.spoilt
    assert warm["kv_transfer_params"] == loans.lend("p1", PROMPT) | {"remote_request_id": "p1-0"}


async def test_each_transfer_has_a_new_ticket(fakes: dict[str, FakeEngine], find: Find) -> None:
    """A transfer that is tried again does not use the ticket of the first try."""
    fakes["md1"].scripts.append(Script(fault=Cut(None)))
    path = NixlPull(find)
    with pytest.raises(TransferFailed):
        await read(path, REQUEST)
    await read(path, REQUEST)
    loans = fakes["p1"].loans
    assert loans is not None and len(loans.lent) == 2 and not loans.spoilt


async def test_p_that_lends_nothing_is_named(fakes: dict[str, FakeEngine], find: Find) -> None:
    """A P without a NixlConnector answers without a ticket; the reason says so."""
    fakes["p1"].loans = None
    with pytest.raises(TransferFailed, match="NixlConnector"):
        await read(NixlPull(find), REQUEST)
    assert not fakes["md1"].calls


@pytest.mark.parametrize("path_type", [EnginePull, NixlPull])
async def test_without_an_instance_it_fails(path_type: type[EnginePull], find: Find) -> None:
    """No P or MD to ask just now is a failed transfer, which is tried again later."""
    request = TransferRequest("t", "", "m", PROMPT, CHUNK_TOKENS, served_model="demo")
    with pytest.raises(TransferFailed, match="no instance"):
        await read(path_type(find), request)


async def test_a_transfer_counts_whole_until_it_ends(fakes: dict[str, FakeEngine], find: Find) -> None:
    """The link's queue holds all full chunks of what is under way, and nothing once it has ended."""
    gate = HoldGate()
    fakes["md1"].script = Script(holds={0: gate})
    path = EnginePull(find)
    request = TransferRequest(
        "t", "", "m", PROMPT, CHUNK_TOKENS, served_model="demo", main="md1", kv_bytes_per_token=1000
    )
    reading = asyncio.create_task(read(path, request))
    await gate.arrivals()
    state = await path.link()
    assert (state.queued_bytes, state.open_transfers, state.up) == (32_000, 1, True)
    gate.open()
    await reading
    assert (await path.link()).queued_bytes == 0
