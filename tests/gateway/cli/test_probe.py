"""``pdd probe`` where it cannot learn much; what it learns of real engines: ``tests/integration/test_canaries.py``."""

import json

import pytest

from tests.gateway.cli.fleet import MODEL, Fleet, pdd

pytestmark = pytest.mark.slow


async def test_a_bridge_that_shows_nothing(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    """An older bridge, which refuses, is told of, and that nothing could be tried is a fault."""
    assert await pdd("probe", "--config", await fleet.write(), "--json") == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["link"], found["model"], found["prefill"], found["main"]) == ("a->b", MODEL, "p1", "md1")
    assert found["prefill_stores"] is found["main_stores"] is None
    assert "the stores were not read: the bridge answered 500" in found["notes"][0]
    assert "nothing could be tried" in found["faults"][0]


async def test_an_engine_that_is_away(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    """Without an MD that is up nothing is sent, and that is said."""
    await fleet.engines["md1"].stop()
    assert await pdd("probe", "--config", await fleet.write()) == 1
    assert "FAULT: nothing could be tried: no P or no MD is up" in capsys.readouterr().out
    assert fleet.calls == 0


async def test_without_a_link_there_is_nothing_to_probe(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    """A deployment of one region is no fault."""
    assert await pdd("probe", "--config", await fleet.write(links=[])) == 0
    assert "no link has a P at its one end" in capsys.readouterr().out


async def test_chats_that_are_read_otherwise(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    """An engine that makes other prompts of chats is named with their shapes."""
    fleet.engines["md1"].reads_chat = lambda chat: [1, 2, 3]
    assert await pdd("probe", "--config", await fleet.write(links=[])) == 0
    assert "md1 makes other prompts of chats: arguments_cut" in capsys.readouterr().out
    assert await pdd("probe", "--config", await fleet.write(links=[]), "--json") == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["instance"] == "md1" and "user" in told["reads_otherwise"]
