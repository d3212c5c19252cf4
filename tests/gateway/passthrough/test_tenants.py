"""Passed requests keep to their tenant's rules: models, limits, charges."""

import json
from typing import Any

import pytest

from policies.rules import parse_rules
from tests.fakes.upstream import SSE, Say
from tests.gateway.passthrough.conftest import Rig

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]
TOLD = Say((b'{"usage":{"prompt_tokens":30,"completion_tokens":12}}',))


def use_rules(rig: Rig, **rules: Any) -> None:
    """Put rules in force for everybody."""
    rig.gateway.rulebook.replace(parse_rules(rules))


async def test_aliases_and_forbidden_models(rig: Rig) -> None:
    """An alias reaches the model that it stands for, at every path; a model that is not allowed does not exist."""
    use_rules(rig, models={"allowed": ["guest"], "aliases": {"gpt-4o": "guest"}})
    for path in (CHAT, "/v1/embeddings"):
        assert (await rig.ask(path, model="gpt-4o", messages=MESSAGES, input="x")).status_code == 200
    asked = [asked for upstream in rig.upstreams for asked in upstream.asked]
    assert {json.loads(one.body)["model"] for one in asked} == {"guest"}
    use_rules(rig, models={"allowed": ["tiny"], "aliases": {"gpt-4o": "guest"}})
    for name in ("guest", "gpt-4o"):
        for path in (CHAT, "/v1/embeddings"):
            refused = await rig.ask(path, model=name, messages=MESSAGES, input="x")
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")


async def test_limits_hold_and_true_use_is_charged(rig: Rig) -> None:
    """Passed requests share the tenant's buckets; what the server reports is charged, once it is known."""
    use_rules(rig, limits={"requests_per_min": 2, "tokens_per_min": 1000})
    rig.upstreams[0].say = rig.upstreams[1].say = TOLD
    for _ in range(2):
        assert (await rig.ask(CHAT, messages=MESSAGES, max_tokens=400)).status_code == 200
    refused = await rig.ask("/v1/embeddings", input="x")
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert int(refused.headers["x-ratelimit-remaining-tokens"]) in range(1000 - 2 * 42, 1000 - 2 * 42 + 60)
    used = {what: rig.counted(f"pdd_tenant_{what}_total", tenant="default") for what in ("requests", "prompt_tokens")}
    assert used == {"requests": 2, "prompt_tokens": 60}
    assert rig.counted("pdd_tenant_completion_tokens_total", tenant="default") == 24


@pytest.mark.parametrize(
    ("said", "slo", "counted"),
    [
        (TOLD, {}, (1, 0)),
        (TOLD, {"ttft_s": 1e-9}, (0, 1)),
        (TOLD, {"total_s": 1e-9}, (0, 1)),
        (TOLD, {"ttft_s": None, "total_s": None}, (0, 0)),
        (Say((b"no",), 500), {}, (0, 1)),
        (Say((b"no",), 400), {}, (0, 0)),
    ],
)
async def test_promises_hold_for_passed_requests(
    rig: Rig, said: Say, slo: dict[str, Any], counted: tuple[int, int]
) -> None:
    """A passed answer keeps its tenant's promises by its first byte and its end; a failing server breaks them."""
    use_rules(rig, slo=slo)
    rig.upstreams[0].say = said
    answer = await rig.ask(CHAT, messages=MESSAGES)
    kept, broken = counted
    assert rig.judged("true") == kept and rig.judged("false") == broken
    timeline = (await rig.client.get(f"/admin/requests/{answer.headers['x-request-id']}")).json()
    assert timeline["slo_met"] is (True if kept else False if broken else None)


@pytest.mark.parametrize(("slo", "met"), [({}, "true"), ({"ttft_s": 1e-9}, "false")])
async def test_promises_hold_for_own_models(rig: Rig, slo: dict[str, Any], met: str) -> None:
    """The metrics page tells, by tenant, how many answers of the engines kept what was promised."""
    use_rules(rig, slo=slo)
    asked = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 3, "ignore_eos": True}
    answer = await rig.client.post("/v1/completions", json=asked)
    assert answer.status_code == 200
    counted = f'pdd_slo_requests_total{{met="{met}",tenant="default"}} 1.0'
    while counted not in (await rig.client.get("/metrics")).text:  # legs may still be ending
        pass
    timeline = (await rig.client.get(f"/admin/requests/{answer.headers['x-request-id']}")).json()
    assert timeline["slo_met"] is (met == "true")
    assert rig.judged("true") + rig.judged("false") == 1


async def test_answers_that_are_too_long_are_refused(rig: Rig) -> None:
    """A limit beyond the tenant's is refused by its name, whichever of its names it has."""
    use_rules(rig, limits={"max_output_tokens": 10})
    for path, name in ((CHAT, "max_completion_tokens"), ("/v1/responses", "max_output_tokens")):
        refused = await rig.ask(path, messages=MESSAGES, input="x", **{name: 11})
        error = refused.json()["error"]
        assert (refused.status_code, error["param"], error["code"]) == (400, name, "output_limit_exceeded")
    assert not rig.upstreams[0].asked and not rig.upstreams[1].asked
    assert (await rig.ask(CHAT, messages=MESSAGES, max_tokens=10)).status_code == 200


@pytest.mark.parametrize(
    ("path", "said", "status"),
    [
        (CHAT, TOLD, 200),
        (CHAT, Say((b"data: [DONE]\n\n",), headers=SSE), 200),
        ("/v1/embeddings", Say((b'{"error":{"message":"no"}}',), 400), 400),
    ],
)
async def test_answers_tell_how_the_tenant_stands(rig: Rig, path: str, said: Say, status: int) -> None:
    """Whatever the server answers, the answer carries the limits' headers, and none without limits."""
    rig.upstreams[0].say = said
    assert not any(name.startswith("x-ratelimit") for name in (await rig.ask(path, input="x")).headers)
    use_rules(rig, limits={"requests_per_min": 5, "tokens_per_min": 1000})
    for asked in (1, 2):
        answer = await rig.ask(path, messages=MESSAGES, input="x")
        assert answer.status_code == status
        assert answer.headers["x-ratelimit-limit-requests"] == "5"
        assert answer.headers["x-ratelimit-remaining-requests"] == str(5 - asked)
        assert answer.headers["x-ratelimit-limit-tokens"] == "1000"


async def test_prompts_of_ids_that_are_too_long_are_refused(rig: Rig) -> None:
    """Ids are counted, each prompt by itself; text is not, whatever its length."""
    use_rules(rig, limits={"max_prompt_tokens": 3})
    cases: list[tuple[str, str, Any]] = [
        ("/v1/completions", "prompt", [1, 2, 3, 4]),
        ("/v1/embeddings", "input", [[1], [1, 2, 3, 4]]),
    ]
    for path, name, prompt in cases:
        refused = await rig.ask(path, **{name: prompt})
        error = refused.json()["error"]
        assert (refused.status_code, error["param"], error["code"]) == (400, name, "prompt_too_long")
    assert not rig.upstreams[0].asked and not rig.upstreams[1].asked
    for prompt in ([1, 2, 3], [[1, 2, 3], [4, 5, 6]], "word " * 100, ["word " * 100], [], None, [["x"]]):
        assert (await rig.ask("/v1/embeddings", input=prompt)).status_code == 200
