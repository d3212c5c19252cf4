"""The demo while it runs: what is drawn of a scenario, and what is left of it."""

import asyncio
from io import StringIO

from rich.console import Console

from gateway.demo.command import has_desktop
from gateway.demo.progress import SHOWN_LINES, ScenarioProgress, draw_result, draw_running
from gateway.demo.scenarios import ScenarioRun
from gateway.operator.terminal import ROLE_STYLES


def make_run() -> ScenarioRun:
    """A relay's answer of which all three roles made a part."""
    run = ScenarioRun(sent_s=100.0, wan_bytes=20_300_000, identical=True)
    for at_s, role, ids, text in (
        (103.5, "P", [1], "Once"),
        (103.75, "RLD", [2, 3], " upon a"),
        (105, "MD", [4], " time"),
    ):
        run.moments.append((at_s, role, ids))
        run.pieces.append((role, text))
    return run


def test_a_running_scenario_tells_bytes_tokens_and_coloured_text() -> None:
    """Time since it was asked, bytes over the line, tokens by role, and the text in the colours of who made it."""
    drawn = draw_running("one_shot", make_run(), 12_340_000, 106.2, 150)
    head, text = drawn.plain.split("\n")
    assert "one shot" in head and "6.2 s" in head and "12.3 MB over the line" in head
    assert head.endswith("P 1 · RLD 2 · MD 1")
    assert text == "Once upon a time"
    styled = {str(span.style) for span in drawn.spans}
    assert set(ROLE_STYLES.values()) <= styled


def test_before_the_first_token_it_says_so() -> None:
    """Neither a time nor tokens are made up."""
    assert draw_running("naive", ScenarioRun(), 0, 50.0, 150).plain.endswith("-  0 B over the line  no token yet")


def test_a_long_answer_shows_its_end_in_few_lines() -> None:
    """The last words stay in sight, no line is wider than the terminal, and nothing in them steers it."""
    run = make_run()
    run.pieces += [("MD", f" word{number}\n\x1b[2J") for number in range(500)]
    head, *lines = draw_running("catch_up", run, 0, 106.0, 60).plain.split("\n")
    assert len(lines) == SHOWN_LINES and all(len(line) <= 60 for line in (head, *lines))
    assert "word499" in "".join(lines) and "\x1b" not in "".join(lines)


def test_a_result_is_one_line() -> None:
    """What a client saw, and whether the ids were one engine's."""
    run = make_run()
    told = draw_result("catch_up", run).plain
    assert told == (
        "✓ catch up: RLD writes meanwhile, and MD follows in rounds: first token after 3.50 s, "
        "joint gap 1.25 s, 20.3 MB over the line, "
        "tokens P 1 · RLD 2 · MD 1"
    )
    run.identical = False
    assert draw_result("catch_up", run).plain.startswith("✗ not the ids of one engine")


async def test_a_terminal_sees_it_live_and_keeps_one_line() -> None:
    """The count of bytes begins with the scenario; frames go, the result stays."""
    screen, drawn = StringIO(), asyncio.Event()
    counts = iter([1_000_000, 3_000_000])

    async def wan_bytes() -> int:
        count = next(counts, None)
        if count is None:
            drawn.set()
        return count or 3_000_000

    console = Console(file=screen, width=150, force_terminal=True, color_system=None)
    async with ScenarioProgress(console, wan_bytes).watch("fused", make_run()):
        await drawn.wait()
        assert "2.0 MB over the line" in screen.getvalue()
    assert screen.getvalue().count("first token after 3.50 s") == 1


async def test_a_pipe_gets_one_line_a_scenario() -> None:
    """Nothing is counted for it, and nothing steers a terminal that is not there."""
    screen = StringIO()

    async def wan_bytes() -> int:
        raise AssertionError("nobody looks")

    async with ScenarioProgress(Console(file=screen, width=150), wan_bytes).watch("fused", make_run()):
        assert screen.getvalue() == ""
    assert screen.getvalue() == draw_result("fused", make_run()).plain + "\n"


def test_a_browser_opens_only_before_somebody() -> None:
    """A desktop and a terminal: else only the address is printed."""
    assert has_desktop({"DISPLAY": ":0"}, True) and has_desktop({"WAYLAND_DISPLAY": "wayland-0"}, True)
    assert not has_desktop({"DISPLAY": ":0"}, False)
    assert not has_desktop({"DISPLAY": ""}, True)
