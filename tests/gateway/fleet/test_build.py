"""How the caches of engines are followed, as settings and engines tell it."""

import logging

import pytest

from backends.kv.subscriber import EventSource
from backends.types import Capabilities
from gateway.config.fleet_settings import EngineSettings
from gateway.fleet.build import ASSUMED_BLOCK_TOKENS, build_cache_spec, build_instance
from gateway.fleet.pools import Instance
from gateway.index.types import CacheSpec

TWO = Capabilities(
    ("demo",), 4096, 32, True, "boot", (("tcp://e:5557", "tcp://e:6557"), ("tcp://e:5558", None)), 2, first_rank=4
)


def settings_of(**fields: str | int | None) -> EngineSettings:
    """One engine's settings."""
    return EngineSettings("md1", "MD", "demo", "b", "http://127.0.0.1:9", **fields)  # type: ignore[arg-type]


def make(settings: EngineSettings, found: Capabilities | None) -> tuple[Instance, CacheSpec]:
    """The instance, which has told what it is, and how its cache is followed."""
    instance = build_instance(settings, {})
    instance.capabilities = found
    return instance, build_cache_spec(instance, settings)


def test_sources_that_an_engine_tells_are_its_ranks() -> None:
    """Each rank has the source that the engine told, and the name that its events give it."""
    instance, spec = make(settings_of(kv_events="auto"), TWO)
    sources = (EventSource("tcp://e:5557", "tcp://e:6557"), EventSource("tcp://e:5558"))
    assert spec == CacheSpec("md1", "demo", 32, sources, 2, "boot", first_rank=4)
    assert instance.data_parallel_size == 2


@pytest.mark.parametrize(("ranks", "told"), [(None, TWO), (2, Capabilities(("demo",), None, 32, True))])
def test_one_endpoint_stands_for_the_first_rank(ranks: int | None, told: Capabilities) -> None:
    """The other ranks publish and replay at the ports that follow, however their number is known."""
    _, spec = make(settings_of(kv_events="tcp://e:7000", kv_replay="tcp://e:8000", data_parallel_size=ranks), told)
    assert spec.sources == (EventSource("tcp://e:7000", "tcp://e:8000"), EventSource("tcp://e:7001", "tcp://e:8001"))
    assert spec.dp_size == 2


def test_engine_with_one_rank_is_followed_as_ever() -> None:
    """Without ranks there is one source, or none where the settings name none."""
    found = Capabilities(("demo",), None, None, True)
    _, named = make(settings_of(kv_events="tcp://e:7000"), found)
    assert named == CacheSpec("md1", "demo", ASSUMED_BLOCK_TOKENS, (EventSource("tcp://e:7000"),))
    _, guessed = make(settings_of(), found)
    assert guessed == CacheSpec("md1", "demo", ASSUMED_BLOCK_TOKENS)
    _, unasked = make(settings_of(), None)
    assert unasked == guessed


@pytest.mark.parametrize(
    ("ranks", "told", "words"),
    [
        (None, Capabilities(("demo",), None, 32, True), "md1 tells of no KV events"),
        (3, TWO, "md1 tells of 2 sources of KV events; data_parallel_size is 3"),
    ],
)
def test_what_does_not_fit_is_said(
    caplog: pytest.LogCaptureFixture, ranks: int | None, told: Capabilities, words: str
) -> None:
    """An engine that was to tell its sources and tells none, or another number than the settings, is named."""
    with caplog.at_level(logging.WARNING):
        _, spec = make(settings_of(kv_events="auto", data_parallel_size=ranks), told)
    assert words in caplog.text
    assert spec.dp_size == (ranks or 1)
