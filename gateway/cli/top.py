"""``pdd top``: a gateway's fleet and requests in the terminal, live, over its operator's routes."""

import argparse
import asyncio
import os
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import httpx
import msgspec
from rich.console import Console
from rich.live import Live

from backends.transport.sse import EventTooLarge, SseParser
from gateway.cli.asking import (
    CannotAsk,
    add_gateway,
    check_answer,
    open_console,
    run_asking,
    spell_failure,
)
from gateway.cli.top_frame import draw_frame
from gateway.cli.top_state import Controls, WatchedState

RETRY_S = 1.0
FRAME_LINES = 50
"""Of a frame that is only printed."""
MOST_EVENT_BYTES = 64 << 20
KEY_WANTED = "the operator's key is needed, and the one given is not it: name its environment variable with --key-env"
NO_ROUTES = (
    "there are no operator's routes at this address: the gateway has them on a listener of their own "
    "(`admin.listen`) or not at all (`admin` in its settings)"
)
WORDS = {401: KEY_WANTED, 404: NO_ROUTES}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_gateway(parser, "the operator's key")
    parser.add_argument("--once", action="store_true", help="print one frame and end")


def run(args: argparse.Namespace) -> int:
    """Show the gateway; the exit status."""

    def work(runner: asyncio.Runner, client: httpx.AsyncClient) -> None:
        console = open_console()
        if args.once:
            runner.run(print_once(client, console))
        elif console.is_terminal and sys.stdin.isatty():
            runner.run(watch(client, console, sys.stdin.fileno()))
        else:
            raise CannotAsk("this is no terminal: --once prints one frame")

    return run_asking("top", args, work)


async def print_once(client: httpx.AsyncClient, console: Console) -> None:
    """Print one frame. Raises CannotAsk and httpx.HTTPError."""
    state = WatchedState()
    response = await client.get("/admin/state")
    await check_answer(response, WORDS)
    state.take(msgspec.json.decode(response.content), whole=True)
    console.print(draw_frame(state, Controls(), str(client.base_url), time.time(), FRAME_LINES))


async def watch(client: httpx.AsyncClient, console: Console, keyboard: int) -> None:
    """Show frames until a key ends it. Raises CannotAsk where there never was one to show."""
    state, controls, changed = WatchedState(), Controls(), asyncio.Event()

    def press(key: str) -> None:
        controls.press(key)
        changed.set()

    following = asyncio.create_task(follow(client, state, changed.set))
    following.add_done_callback(lambda _: changed.set())
    try:
        with listen(keyboard, press):
            await changed.wait()
            if following.done():
                await following
            with Live(console=console, screen=True, auto_refresh=False) as live:
                while not controls.over:
                    changed.clear()
                    frame = draw_frame(state, controls, str(client.base_url), time.time(), console.height)
                    live.update(frame, refresh=True)
                    await changed.wait()
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError, CannotAsk):
            await following


async def follow(client: httpx.AsyncClient, state: WatchedState, note: Callable[[], None]) -> None:
    """Keep ``state`` as the gateway tells, and ask again when it breaks off. Raises CannotAsk if it never began."""
    while True:
        try:
            await _read_stream(client, state, note)
            state.lost = "the gateway has ended its stream"
        except httpx.HTTPError as error:
            state.lost = spell_failure(client, error)
        except (CannotAsk, EventTooLarge, msgspec.DecodeError) as error:
            state.lost = str(error)
        if not state.sections:
            raise CannotAsk(state.lost)
        note()
        await asyncio.sleep(RETRY_S)


async def _read_stream(client: httpx.AsyncClient, state: WatchedState, note: Callable[[], None]) -> None:
    async with client.stream("GET", "/admin/events") as response:
        await check_answer(response, WORDS)
        parser, whole = SseParser(MOST_EVENT_BYTES), True
        async for part in response.aiter_bytes():
            for data in parser.feed(part):
                state.take(msgspec.json.decode(data), whole)
                whole = False
                note()


@contextmanager
def listen(keyboard: int, press: Callable[[str], None]) -> Iterator[None]:
    """Give each key of a terminal to ``press`` as it is pressed."""
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    loop = asyncio.get_running_loop()

    def read() -> None:
        for key in os.read(keyboard, 1024).decode(errors="replace"):
            press(key)

    loop.add_reader(keyboard, read)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
