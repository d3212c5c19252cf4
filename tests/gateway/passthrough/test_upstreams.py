"""An upstream is up when it answers, and serves what it says or what the settings say."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.app import Gateway
from gateway.config.fleet_settings import BadSettings
from gateway.config.settings import parse_settings
from gateway.passthrough.upstreams import Upstream, UpstreamSpec
from tests.fakes.index import KnownIndex
from tests.fakes.upstream import FakeUpstream, Say
from tests.gateway.model_dir import model_dir
from tests.valkey import make_away

__all__ = ["model_dir"]

NAMED = frozenset({"whisper"})


@pytest.fixture
async def fake() -> AsyncIterator[FakeUpstream]:
    """A server with two models."""
    async with FakeUpstream("llama", "nomic") as server:
        yield server


@pytest.mark.parametrize(
    ("said", "named", "reachable", "models"),
    [
        (None, None, True, {"llama", "nomic"}),
        (None, NAMED, True, NAMED),
        (Say(status=404), None, False, set()),
        (Say(status=404), NAMED, True, NAMED),
        (Say(status=401), NAMED, False, NAMED),
        (Say(status=503), NAMED, False, NAMED),
        (Say((b"<html>",)), NAMED, True, NAMED),
        (Say((b"<html>",)), None, False, set()),
    ],
)
async def test_check(
    fake: FakeUpstream, said: Say | None, named: frozenset[str] | None, reachable: bool, models: set[str]
) -> None:
    """A list of models is needed only where the settings name none."""
    fake.models_answer = said or fake.models_answer
    upstream = Upstream(UpstreamSpec("up", fake.url, named))
    await upstream.check()
    assert (upstream.reachable, upstream.models) == (reachable, frozenset(models))
    await upstream.origin.aclose()


async def test_models_of_a_lost_server_are_remembered(fake: FakeUpstream) -> None:
    """What it served is still known while it is away, so that its clients hear 503 and not 404."""
    upstream = Upstream(UpstreamSpec("up", fake.url))
    await upstream.check()
    await fake.stop()
    await upstream.check()
    assert not upstream.reachable
    assert upstream.offers("llama", "/v1/embeddings")
    assert upstream.last_error


def settings(**upstream: Any) -> dict[str, Any]:
    """A configuration with one upstream."""
    return {
        "models": [{"name": "tiny", "path": "/nowhere", "kv_bytes_per_token": 1}],
        "engines": [{"id": "p", "role": "P", "model": "tiny", "region": "a", "url": "http://h"}],
        "upstreams": [{"id": "up", "url": "http://h"} | upstream],
    }


@pytest.mark.parametrize(
    ("upstream", "words"),
    [
        ({"models": ["tiny"]}, r"upstreams\[0\]\.models: 'tiny' is in models, too"),
        ({"paths": ["/admin"]}, r"upstreams\[0\]\.paths: '/admin' is not one of /v1/chat/completions, "),
        ({"url": "file:///etc/passwd"}, r"upstreams\[0\]\.url|upstreams\[...\]\.url"),
        ({"max_running": 0}, "max_running"),
    ],
)
def test_bad_settings_are_named(upstream: dict[str, Any], words: str) -> None:
    """A wrong key stops the start and is named."""
    with pytest.raises(BadSettings, match=words):
        parse_settings(settings(**upstream))


def test_a_missing_key_stops_the_start(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upstream whose key is not in the environment is not called without one."""
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    document = settings(api_key_env="NO_SUCH_KEY")
    document["models"][0]["path"] = str(model_dir)
    with pytest.raises(BadSettings, match=r"upstreams\[up\]\.api_key_env: NO_SUCH_KEY is not set"):
        Gateway(parse_settings(document), KnownIndex({}), make_away())
