"""``pdd explain`` and ``pdd index`` beside a gateway that serves real engines."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.demo.cluster import MODEL
from tests.gateway.cli.fleet import pdd
from tests.integration.regions import Regions, eventually

PING_BYTES = 2000
"""The bridge measures its round trip now and then; KV is far more."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="session")]


async def test_the_decision_follows_the_caches(
    whole: Regions, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A long new prompt would be relayed; once it was answered it would go direct; when singular pays, it is that."""
    config, request = tmp_path / "gateway.yaml", tmp_path / "request.json"
    document = whole.cluster.settings("127.0.0.1:0")
    body: dict[str, Any] = {"model": MODEL, "max_tokens": 24, "temperature": 0}

    async def explain(content: str, **rules: Any) -> dict[str, Any]:
        config.write_text(yaml.safe_dump(document | {"rules": rules}))
        request.write_text(json.dumps(body | {"messages": [{"role": "user", "content": content}]}))
        before = await whole.cluster.store_bytes()
        assert await pdd("explain", "--config", config, "--request", request, "--json") == 0
        assert await whole.cluster.store_bytes() - before < PING_BYTES
        return dict(json.loads(capsys.readouterr().out))

    content = whole.fresh_prompt(2000)
    cold = await explain(content)
    assert (cold["plan"]["kind"], cold["reason"]) == ("relay", "wan_slow")
    assert set(cold["facts"]["hits"]) == {"p1", "rld1", "rld2", "md1", "md2"}
    assert (await explain(content, singular={"min_uncached_tokens": 1000}))["plan"]["kind"] == "singular"
    url = f"{whole.base_url}/v1/chat/completions"
    answer = await whole.client.post(url, json=json.loads(request.read_text()))
    assert answer.status_code == 200
    await whole.gateway.aligner.drained()
    assert answer.json()["usage"]["prompt_tokens"] == cold["facts"]["prompt_tokens"]

    async def is_direct() -> bool:
        return bool((await explain(content))["plan"]["kind"] == "direct")

    assert await eventually(is_direct, 30)
    assert await pdd("index", "lookup", "--config", config, "--model", MODEL, "--prompt", request, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["prompt_tokens"] == cold["facts"]["prompt_tokens"]
    assert max(hit["tokens"] for hit in found["instances"].values()) >= found["prompt_tokens"] - 64
    assert all(hit["update_age_s"] < 10 for name, hit in found["instances"].items() if not name.startswith("store"))
