"""What the demo tells its user to do next."""

import shlex
from io import StringIO

from rich.console import Console

from gateway.__main__ import COMMANDS
from gateway.demo.report import print_usage


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
