"""What the demo tells its user to do next."""

import shlex
from io import StringIO

from rich.console import Console

from gateway.__main__ import COMMANDS
from gateway.demo.report import AFTER_JOINT, BEFORE_JOINT, around_joints, print_usage
from gateway.operator.terminal import ROLE_STYLES


def test_the_demo_offers_the_page_and_commands_that_exist() -> None:
    """The page's address and both commands for the terminal are named, with the gateway's address."""
    screen = StringIO()
    print_usage(Console(file=screen, width=150), "http://127.0.0.1:8123", "demo", 900)
    told = screen.getvalue()
    assert "http://127.0.0.1:8123/ui\n" in told
    offered = [shlex.split(line.rpartition("pdd ")[2]) for line in told.splitlines() if "pdd " in line]
    assert [words[0] for words in offered] == ["top", "chat"] and all(words[0] in COMMANDS for words in offered)
    assert offered[1][1:4] == ["--long", "--words", "900"]
    assert all(words[-2:] == ["--url", "http://127.0.0.1:8123"] for words in offered)


def test_an_answer_is_shown_around_its_joints() -> None:
    """Long stretches of one role are left out, and what is shown is in the colour of who made it."""
    pieces = [("P", "Let"), *[("RLD", " me\n")] * 1000, *[("MD", " end")] * 1000]
    shown = around_joints(pieces)
    assert shown.plain.startswith("Let me  me ") and shown.plain.count(" [...]") == 2
    assert "me  end end" in shown.plain
    made = {
        style: sum(span.end - span.start for span in shown.spans if str(span.style) == style)
        for style in ROLE_STYLES.values()
    }
    assert list(made.values()) == [3, AFTER_JOINT + BEFORE_JOINT, AFTER_JOINT]
    assert around_joints([("MD", "short")]).plain == "short"
