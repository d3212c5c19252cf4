"""What the demo tells its user to do next."""

import json
import shlex
from io import StringIO
from pathlib import Path

from rich.console import Console

from gateway.__main__ import COMMANDS
from gateway.demo.command import write_samples
from gateway.demo.report import AFTER_JOINT, BEFORE_JOINT, around_joints, print_usage
from gateway.operator.terminal import ROLE_STYLES


def test_the_demo_offers_the_page_and_commands_that_exist() -> None:
    """The page's address and both commands for the terminal are named, with the gateway's address."""
    screen = StringIO()
    samples = {"A relay": Path("/tmp/relay.json"), "A call": Path("/tmp/tool.json")}
    print_usage(Console(file=screen, width=150), "http://127.0.0.1:8123", 900, samples)
    told = screen.getvalue()
    assert "http://127.0.0.1:8123/ui\n" in told
    offered = [shlex.split(line.rpartition("pdd ")[2]) for line in told.splitlines() if "pdd " in line]
    assert [words[0] for words in offered] == ["top", "chat"] and all(words[0] in COMMANDS for words in offered)
    assert offered[1][1:4] == ["--long", "--words", "900"]
    curls = [shlex.split(line) for line in told.splitlines() if line.startswith("curl ")]
    assert [words[-1] for words in curls] == ["@/tmp/relay.json", "@/tmp/tool.json"]
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


def test_the_sample_is_long_enough_for_a_relay(tmp_path: Path) -> None:
    """Its file is a streamed chat whose prompt has as many words as were asked for."""
    (path,) = write_samples(tmp_path, 500).values()
    body = json.loads(path.read_bytes())
    assert body["stream"] and 500 <= len(body["messages"][0]["content"].split()) < 650
