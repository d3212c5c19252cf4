"""``pdd explain``: the gateway's own decision, told and not carried out."""

import json
from typing import Any

import pytest

from backends.kv.subscriber import EventSource
from gateway.auth.secrets import Salts
from gateway.cli.explain import describe, explain
from gateway.errors import GatewayError
from gateway.redis.client import SharedRedis
from tests.gateway.cli.fleet import MODEL, Fleet, pdd
from tests.gateway.index.publisher import Publisher, run_publisher, stored
from tests.valkey import run_valkey

COLD = {"p1": 0, "rld1": 0, "md1": 0}
PROMPT = [index % 500 for index in range(4100)]
SECRET = "0123456789abcdef0123"
EAGER = {"singular": {"min_uncached_tokens": 2000}}


def body(prompt: Any = PROMPT, max_tokens: int = 2000, **fields: Any) -> bytes:
    """A completion's body."""
    return json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": max_tokens} | fields).encode()


async def test_a_long_cold_prompt_is_relayed(fleet: Fleet, shared_redis: SharedRedis) -> None:
    """Facts, estimate, plan, scores and reason are told, and no engine is asked for anything."""
    async with fleet.gateway(COLD, shared_redis) as gateway:
        told = await explain(gateway, body())
    assert told.keys() == {"facts", "estimate", "plan", "reason", "why", "scores"}
    assert (told["plan"]["kind"], told["reason"]) == ("relay", "wan_slow")
    assert [told["plan"][role] for role in ("prefill", "relay", "main")] == ["p1", "rld1", "md1"]
    assert told["facts"]["prompt_tokens"] == 4100
    assert told["estimate"]["wan_bytes"] == 4096 * 100_000
    assert fleet.calls == 0


async def test_a_warm_prompt_goes_direct(fleet: Fleet, shared_redis: SharedRedis) -> None:
    """What MD has cached makes the plan direct."""
    async with fleet.gateway(COLD | {"md1": 4096}, shared_redis) as gateway:
        told = await explain(gateway, body())
    assert (told["plan"]["kind"], told["facts"]["hits"]["md1"]["tokens"]) == ("direct", 4096)


async def test_a_very_long_cold_prompt_with_a_short_answer_is_singular(fleet: Fleet, shared_redis: SharedRedis) -> None:
    """The singular rule is applied as for a gateway with its whole budget left."""
    async with fleet.gateway(COLD, shared_redis, rules=EAGER) as gateway:
        told = await explain(gateway, body(max_tokens=64))
        longer = await explain(gateway, body(max_tokens=600))
    assert (told["plan"]["kind"], told["plan"]["main"]) == ("singular", None)
    assert longer["plan"]["kind"] == "relay"


async def test_unknown_hits_stay_unknown(fleet: Fleet, shared_redis: SharedRedis) -> None:
    """An instance of which nothing is known is told as unknown, not as empty."""
    async with fleet.gateway({}, shared_redis) as gateway:
        told = await explain(gateway, body())
    assert told["reason"] == "hit_unknown"
    assert "cached     md1: unknown" in describe(told)


async def test_a_chat_is_made_ready_as_the_api_does(fleet: Fleet, shared_redis: SharedRedis) -> None:
    """Messages go through the chat template, and an answer that may not be split says why."""
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "Hello there."}], "seed": 7, "temperature": 1.0}
    async with fleet.gateway(COLD, shared_redis) as gateway:
        template = gateway.served[MODEL].template
        assert template is not None
        text = template.render(chat["messages"], add_generation_prompt=True)  # type: ignore[arg-type]
        ids = gateway.served[MODEL].encoder.encode_now(text)
        told = await explain(gateway, json.dumps(chat).encode())
    assert told["facts"]["prompt_tokens"] == len(ids)
    assert told["facts"]["unsplittable"] == told["reason"] == "seeded_sampling"
    assert any("one engine must answer: seeded_sampling" in line for line in describe(told))


async def test_a_request_that_cannot_be_decided(fleet: Fleet, shared_redis: SharedRedis) -> None:
    """Bodies that the API would refuse, that are no request at all, and fleets that cannot serve are errors."""
    async with fleet.gateway(COLD, shared_redis) as gateway:
        with pytest.raises(GatewayError, match="not valid JSON"):
            await explain(gateway, b"{")
        with pytest.raises(GatewayError, match="does not exist"):
            await explain(gateway, body(model="other"))
        with pytest.raises(GatewayError, match="neither messages nor a prompt"):
            await explain(gateway, b"{}")
        for instance in gateway.pools.instances:
            instance.draining = True
        with pytest.raises(GatewayError, match="no MD instance"):
            await explain(gateway, body())


def test_what_is_read_fits_what_was_found() -> None:
    """The lines for people say what the JSON says."""
    told = {
        "facts": {
            "model": MODEL,
            "prompt_tokens": 5000,
            "max_output_tokens": None,
            "predicted_output_tokens": 90,
            "unsplittable": None,
            "hits": {"md1": {"tokens": 64, "store_tokens": 128, "predicted": True}, "p1": None},
            "ranks": {"md1": 3},
        },
        "estimate": None,
        "plan": {
            "kind": "direct",
            "prefill": "p1",
            "relay": None,
            "main": "md1",
            "link": None,
            "classic": True,
            "fused": False,
            "lends": False,
        },
        "reason": "same_region",
        "scores": [
            {
                "role": "MD",
                "chosen": "md1",
                "candidates": [{"id": "md1", "total": 0.5, "signals": {"prefix": 0.25}}],
                "rejected": {"md2": "unhealthy"},
            }
        ],
    }
    assert list(describe(told)) == [
        "request    tiny, 5000 prompt tokens, no limit, 90 expected",
        "cached     md1 rank 3: 64 tokens, 128 in its region's store, predicted",
        "cached     p1: unknown",
        "estimate   no link is involved",
        "scores     MD  -> md1: 0.500 (prefix 0.25)",
        "scores     MD     md2: left out, unhealthy",
        "plan       direct: p1 -> md1, classic",
        "reason     same_region",
    ]


async def publish_engine(publisher: Publisher, tokens: int) -> None:
    """Say that an engine has stored the first blocks of PROMPT; a replay tells it."""
    blocks = tokens // 16
    if blocks:
        await publisher.publish(stored(range(1, blocks + 1), PROMPT[:tokens]), lost=True)


async def test_without_redis_the_engines_are_listened_to(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    """Where no Redis is named, what the engines replay is what is known."""
    async with run_publisher() as empty, run_publisher() as full:
        await publish_engine(full, 4096)
        sources: dict[str, EventSource] = {"p1": full.source, "rld1": empty.source, "md1": full.source}
        engines = [
            engine | {"kv_events": sources[engine["id"]].endpoint, "kv_replay": sources[engine["id"]].replay_endpoint}
            for engine in fleet.settings()["engines"]
        ]
        config, request = await fleet.write(engines=engines), await fleet.put("request.json", body())
        assert await pdd("explain", "--config", config, "--request", request, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    hits = {name: hit["tokens"] for name, hit in told["facts"]["hits"].items()}
    assert hits == {"p1": 4096, "rld1": 0, "md1": 4096}
    assert told["plan"]["kind"] == "direct"
    assert fleet.calls == 0


@pytest.mark.slow
async def test_the_command_tells_the_decision(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    """With Redis the command reads its index and prints lines that end with the reason."""
    request = await fleet.put("request.json", body())
    async with run_valkey() as url:
        assert await pdd("explain", "--config", await fleet.write(redis_url=url), "--request", request) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "request    tiny, 4100 prompt tokens, at most 2000 answer tokens"
    assert lines[-2:] == ["plan       relay: p1 -> rld1 -> md1, KV over a -> b", "reason     wan_slow"]


@pytest.mark.slow
async def test_live_rules_and_topology_hold(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    """With Redis the decision is made under the documents there, not under the file's rules and engines alone."""
    request = await fleet.put("request.json", body())
    async with run_valkey() as url:
        config = await fleet.write(redis_url=url)
        rules = await fleet.put("rules.yaml", b"regions: [a]")
        assert await pdd("rules", "set", rules, "--redis", url) == 0
        assert await pdd("explain", "--config", config, "--request", request) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "reason     region_pinned"
        assert await pdd("pool", "drain", "rld1", "--redis", url) == 0
        assert await pdd("explain", "--config", config, "--request", request) == 1
        assert "draining" in capsys.readouterr().err


@pytest.mark.slow
async def test_a_tenants_rules_and_salt_count(
    fleet: Fleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant's request is decided under the tenant's rules and models, with its salt, which is never told."""
    monkeypatch.setenv("PDD_SECRET", SECRET)
    request = await fleet.put("request.json", body(model="short"))
    rules = await fleet.put("rules.yaml", f"regions: [a]\nmodels: {{aliases: {{short: {MODEL}}}}}".encode())
    async with run_valkey() as url:
        config = await fleet.write(redis_url=url, auth={"secret_env": "PDD_SECRET"})

        async def ask(tenant: str) -> tuple[int, str, str]:
            status = await pdd("explain", "--config", config, "--request", request, "--json", "--tenant", tenant)
            return status, *capsys.readouterr()

        assert (await ask("acme"))[::2] == (1, "pdd explain: tenant acme does not exist\n")
        assert await pdd("tenant", "add", "acme", "--redis", url) == 0
        assert await pdd("rules", "set", rules, "--tenant", "acme", "--redis", url) == 0
        capsys.readouterr()
        status, told, _ = await ask("acme")
        assert (status, json.loads(told)["reason"]) == (0, "region_pinned")
        facts = json.loads(told)["facts"]
        assert (facts["tenant"], facts["model"], facts["salted"]) == ("acme", MODEL, True)
        assert Salts(SECRET.encode()).of("acme") not in told  # type: ignore[operator]
        status, _, why = await ask("default")
        assert (status, why) == (1, "pdd explain: model: The model 'short' does not exist.\n")


async def test_without_keys_there_is_one_tenant(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    """Where no keys are asked for no other tenant's request can come, so none is explained."""
    request = await fleet.put("request.json", body())
    config = await fleet.write()
    assert await pdd("explain", "--config", config, "--request", request, "--tenant", "acme") == 1
    assert "tenant acme: no keys are asked for" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "request_body", "status", "message"),
    [
        ({"listen": 7}, body(), 2, "Expected `str`, got `int` - at `$.listen`"),
        ({}, b'{"model": "other", "prompt": "x"}', 1, "model: The model 'other' does not exist."),
        ({}, None, 1, "cannot read"),
        ({"redis_url": "redis://127.0.0.1:1"}, body(), 1, "redis_url: the index could not be read"),
    ],
)
async def test_errors_are_told(
    fleet: Fleet,
    capsys: pytest.CaptureFixture[str],
    config: dict[str, Any],
    request_body: bytes | None,
    status: int,
    message: str,
) -> None:
    """What is wrong is told in one line, with a status that is not 0 and nothing on the standard output."""
    request = fleet.folder / "request.json"
    if request_body is not None:
        await fleet.put("request.json", request_body)
    assert await pdd("explain", "--config", await fleet.write(**config), "--request", request) == status
    told = capsys.readouterr()
    assert told.out == ""
    assert f"pdd explain: {message}" in told.err
