"""The demo while it runs: what a scenario has brought so far, live in a terminal, and a line of it when it is over."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import httpx
from rich.console import Console
from rich.live import Live
from rich.text import Text

from gateway.demo.report import TITLES
from gateway.demo.scenarios import ScenarioRun
from gateway.operator.terminal import ROLE_STYLES, plain, spell_bytes, spell_seconds

FRAME_S = 0.2
SHOWN_LINES = 3
"""Of the end of an answer that is being written."""
WAITING = "no token yet"

CountBytes = Callable[[], Awaitable[int]]


class ScenarioProgress:
    """Shows scenarios on a console. ``wan_bytes`` counts what has crossed the line since it was started."""

    def __init__(self, console: Console, wan_bytes: CountBytes) -> None:
        self._console = console
        self._wan_bytes = wan_bytes

    @asynccontextmanager
    async def watch(self, name: str, run: ScenarioRun) -> AsyncIterator[None]:
        """Show a scenario while the block plays it into ``run``, and its result after it."""
        if self._console.is_terminal:
            with Live(console=self._console, auto_refresh=False, transient=True) as live:
                drawing = asyncio.create_task(self._draw(live, name, run))
                try:
                    yield
                finally:
                    drawing.cancel()
                    with suppress(asyncio.CancelledError):
                        await drawing
        else:
            yield
        self._console.print(draw_result(name, run), soft_wrap=True)

    async def _draw(self, live: Live, name: str, run: ScenarioRun) -> None:
        before = crossed = await self._wan_bytes()
        while True:
            # The line may be too full to tell; the last count stands then.
            with suppress(httpx.HTTPError):
                crossed = await self._wan_bytes()
            live.update(
                draw_running(name, run, crossed - before, time.perf_counter(), live.console.width), refresh=True
            )
            await asyncio.sleep(FRAME_S)


def draw_running(name: str, run: ScenarioRun, crossed: int, now_s: float, width: int) -> Text:
    """Return what there is so far: the time, bytes that crossed, tokens by role, and the end of the answer."""
    waited = f"{max(0.0, now_s - run.sent_s):.1f} s" if run.sent_s else "-"
    line = Text.assemble((f"▸ {TITLES[name]}", "bold"), f"  {waited}  {spell_bytes(crossed)} over the line  ")
    line.append_text(spell_tokens(run) if run.moments else Text(WAITING, "dim"))
    line.truncate(width, overflow="ellipsis")
    return Text("\n").join([line, *end_of(run, width)])


def end_of(run: ScenarioRun, width: int) -> list[Text]:
    """Return the last lines of an answer, coloured by who made them."""
    pieces: list[tuple[str, str]] = []
    size = 0
    for role, text in reversed(run.pieces):
        pieces.append((plain(text).replace("\n", " "), ROLE_STYLES.get(role, "")))
        size += len(text)
        if size > (SHOWN_LINES + 1) * width:
            break
    whole = Text.assemble(*reversed(pieces))
    lines = [whole[at : at + width] for at in range(0, len(whole), width)]
    return lines[-SHOWN_LINES:]


def draw_result(name: str, run: ScenarioRun) -> Text:
    """Return a scenario in one line."""
    same = ("✓", "green") if run.identical else ("✗ not the ids of one engine", "bold red")
    line = Text.assemble(same, f" {TITLES[name]}: first token after {spell_seconds(run.ttft_s)}")
    if run.joint_gap_s:
        line.append(f", joint gap {spell_seconds(run.joint_gap_s)}")
    line.append(f", {spell_bytes(run.wan_bytes)} over the line, tokens ")
    return line.append_text(spell_tokens(run))


def spell_tokens(run: ScenarioRun) -> Text:
    """Write the tokens of each role that made some."""
    made = [Text(f"{role} {count}", ROLE_STYLES[role]) for role, count in run.tokens.items() if count]
    return Text(" · ").join(made)
