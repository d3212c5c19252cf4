"""``pdd top`` over real gateways before fakes, on a pseudo-terminal, and its looks by a recorded state."""

import asyncio
import json
import os
import pty
import termios
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from gateway.cli import top
from gateway.cli.asking import CannotAsk
from gateway.cli.top_frame import draw_frame
from gateway.cli.top_state import Controls, WatchedState
from gateway.redis.client import SharedRedis
from tests.fakes.engine import answer
from tests.fakes.gates import Watch
from tests.fakes.server import AppServer
from tests.gateway.cli.fleet import MODEL, Fleet, pdd
from tests.gateway.operator.conftest import KEY, Desk, desk, locked_desk, open_desk

__all__ = ["desk", "locked_desk"]

RECORDED = json.loads((Path(__file__).parent / "top_state.json").read_bytes())
FRAME = (Path(__file__).parent / "top_frame.txt").read_text(encoding="utf-8")
URL, NOW_S, HEIGHT = "http://gate.east:8000", 1000.0, 40
LONG = {"model": MODEL, "prompt": [index % 500 for index in range(4100)], "max_tokens": 4}


class Screen(StringIO):
    """A terminal's output, and a way to wait for what appears on it."""

    def __init__(self) -> None:
        super().__init__()
        self._watch = Watch()

    def write(self, text: str) -> int:
        """Take output."""
        count = super().write(text)
        self._watch.changed()
        return count

    async def shows(self, text: str) -> None:
        """Wait until ``text`` appears after all that was waited for before."""
        await self._watch.until(lambda: text in self.getvalue())
        self.truncate(0)
        self.seek(0)


def draw(controls: Controls, width: int = 110) -> str:
    """Draw the recorded state as text."""
    state, screen = WatchedState(), StringIO()
    state.take(RECORDED, whole=True)
    console = Console(file=screen, width=width, height=HEIGHT, color_system=None, markup=False, highlight=False)
    console.print(draw_frame(state, controls, URL, NOW_S, HEIGHT))
    return "".join(f"{line.rstrip()}\n" for line in screen.getvalue().splitlines())


def test_a_recorded_state_looks_as_it_did() -> None:
    """Every role, state, unit and warning has its place, and nothing in it steers the terminal."""
    assert draw(Controls()) == FRAME
    assert any("\x1b" in (one["tenant"] or "") for one in RECORDED["sections"]["requests"].values())
    assert "pdd top" in draw(Controls(), width=40)


def test_keys_sort_and_filter() -> None:
    """s goes through the orders, / writes a filter with corrections, Escape takes it away, q ends."""
    controls, requests = Controls(), RECORDED["sections"]["requests"]

    def press(keys: str) -> str:
        for key in keys:
            controls.press(key)
        return "".join(id_[-1] for id_, _ in controls.choose(requests))

    assert press("") == "acbd"
    assert press("s") == "abcd" and controls.sort == "TTFT"
    assert press("sss") == "acbd" and controls.sort == "newest"
    assert press("/dirx\x7fq") == "" and "dirq_" in draw(controls)
    assert controls == Controls(filter="dirq", typing=True)
    assert press("\x7fe\r") == "c" and "of 4 those with 'dire'" in draw(controls)
    assert controls == Controls(filter="dire")
    assert press("\x1b") == press("/a\x1b") == "acbd"
    assert controls == Controls()
    press("q")
    assert controls == Controls(over=True)


def test_changes_lead_to_the_new_state() -> None:
    """What is gone goes, what is new comes, points are those of the last minute."""
    state = WatchedState()
    state.take(RECORDED, whole=True)
    state.take({"sections": {"links": {"east->north": None}}, "points": [{"requests": 1.0}] * 100}, whole=False)
    assert set(state.section("links")) == {"east->west"} and len(state.points) == 60
    state.take({"sections": {}, "points": []}, whole=True)
    assert not state.section("links") and not state.points


async def test_one_frame_shows_the_fleet_and_a_request(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    """A relayed request stands there with its plan, beside instances and the line."""
    asked = await desk.client.post("/v1/completions", json=LONG)
    assert await pdd("top", "--once", "--url", f"{desk.client.base_url}/v1") == 0
    told = capsys.readouterr().out
    (row,) = [line for line in told.splitlines() if asked.headers["x-request-id"][-12:] in line]
    assert "relay (wan_slow)" in row and "length" in row
    assert all(name in told for name in ("p1", "rld1", "md1", "a -> b"))


async def test_the_live_view_follows_and_obeys_keys(desk: Desk) -> None:
    """On a terminal a new request appears by itself, keys act at once, and the terminal is as it was afterwards."""
    screen = Screen()
    console = Console(file=screen, force_terminal=True, color_system="truecolor", width=150, height=HEIGHT)
    master, slave = pty.openpty()
    os.set_blocking(master, False)
    os.set_blocking(slave, False)
    before = termios.tcgetattr(slave)
    async with httpx.AsyncClient(base_url=desk.client.base_url) as client:
        watching = asyncio.create_task(top.watch(client, console, slave))
        await screen.shows("rld1")
        asked = await desk.client.post("/v1/completions", json=LONG)
        await screen.shows(asked.headers["x-request-id"][-12:])
        os.write(master, b"s")
        await screen.shows("by TTFT")
        os.write(master, b"/nobody")
        await screen.shows("requests with: nobody_")
        os.write(master, b"\rq")
        await watching
    assert termios.tcgetattr(slave) == before
    os.close(master)
    os.close(slave)


async def test_a_lost_gateway_is_named_and_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that ends leaves the last state with a warning until there is a new one; a refusal is told too."""
    monkeypatch.setattr(top, "RETRY_S", 0.0)
    event = b"event: state\ndata: " + json.dumps(RECORDED).encode() + b"\n\n"
    plans: list[Any] = [(200, event), (401, {"error": {"message": "no"}}), (200, event)]

    async def tell(scope: Any, receive: Any, send: Any) -> None:
        if plans:
            await answer(send, *plans.pop(0))
        else:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await receive()
            await receive()

    state, told, watch = WatchedState(), [], Watch()

    def note() -> None:
        told.append(state.lost)
        watch.changed()

    async with AppServer(tell) as server, httpx.AsyncClient(base_url=server.url) as client:
        following = asyncio.create_task(top.follow(client, state, note))
        await watch.until(lambda: len(told) >= 5)
        following.cancel()
        await asyncio.wait([following])
    ended = "the gateway has ended its stream"
    assert told == [None, ended, top.KEY_WANTED, None, ended]
    state.lost = ended
    screen = StringIO()
    Console(file=screen, width=110).print(draw_frame(state, Controls(), URL, NOW_S, HEIGHT))
    assert f"not of now: {ended}; asking again" in screen.getvalue()


async def test_failures_are_told_in_plain_words(locked_desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    """No gateway, no key, no terminal, no address: each has its sentence and exit status 1."""
    url = str(locked_desk.client.base_url)
    async with AppServer(answer_nothing) as other:
        gone = other.url
        assert await pdd("top", "--once", "--url", other.url) == 1
        assert "answers 500, and not as a gateway does" in capsys.readouterr().err
        for command in (("top", "--once"), ("chat", "Well?")):
            assert await pdd(*command, "--url", f"{other.url}/page") == 1
            assert "answers, and not as a gateway does" in capsys.readouterr().err
    for arguments, words in (
        (("--url", gone), f"no gateway answers at {gone}"),
        (("--url", url), top.KEY_WANTED),
        (("--url", url, "--key-env", "PDD_NOT_SET"), "PDD_NOT_SET holds no key"),
        (("--url", "gate.east:8000"), "must begin with http"),
    ):
        assert await pdd("top", "--once", *arguments) == 1
        assert words in capsys.readouterr().err
    assert await pdd("top", "--url", url) == 1
    assert "this is no terminal" in capsys.readouterr().err
    assert await pdd("top", "--once", "--url", url, "--key-env", "PDD_TEST_KEY") == 0
    assert KEY not in capsys.readouterr().out
    with pytest.raises(CannotAsk, match="operator's key"):
        await top.follow(locked_desk.client, WatchedState(), lambda: None)


async def answer_nothing(scope: Any, receive: Any, send: Any) -> None:
    """Be some other server, with a page at one address."""
    if scope["path"].startswith("/page"):
        await answer(send, 200, b"<html></html>")
    else:
        await answer(send, 500, b"Internal Server Error")


async def test_a_gateway_without_operators_routes_says_so(
    fleet: Fleet, shared_redis: SharedRedis, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where nobody may see them, the settings that open them are named."""
    async with open_desk(fleet, shared_redis, admin={"listen": "127.0.0.1:0"}) as desk:
        assert await pdd("top", "--once", "--url", str(desk.client.base_url)) == 1
    assert "`admin.listen`" in capsys.readouterr().err
