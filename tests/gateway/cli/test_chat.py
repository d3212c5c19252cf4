"""``pdd chat`` against a gateway before fakes, and its marks, colours and figures by made-up streams."""

import json
import re
from io import StringIO
from typing import Any

import httpx
import pytest
from rich.console import Console

from gateway.cli.asking import CannotAsk
from gateway.cli.chat import UNTOLD, Talk
from tests.fakes.engine import answer
from tests.fakes.server import AppServer
from tests.gateway.cli.fleet import MODEL, pdd
from tests.gateway.operator.conftest import Desk, desk, locked_desk

__all__ = ["desk", "locked_desk"]


def spell_chunk(role: str | None, text: str, ids: int = 1, **delta: str) -> dict[str, Any]:
    """One chunk of a stream, as the gateway writes it."""
    chunk: dict[str, Any] = {"choices": [{"delta": {"content": text} | delta, "token_ids": [5] * ids}]}
    return chunk if role is None else chunk | {"pdd": {"role": role}}


USAGE = {"choices": [], "usage": {"prompt_tokens": 5012, "prompt_tokens_details": {"cached_tokens": 12}}}
RELAYED = [spell_chunk("P", "The"), spell_chunk("RLD", " fox", 2), spell_chunk("RLD", " runs"), spell_chunk("MD", ".")]


class ScriptedGateway(AppServer):
    """Answers chats with ``chunks``, and knows what crossed the line for them."""

    def __init__(self, chunks: list[dict[str, Any]], done: bool = True, timeline: int = 200) -> None:
        super().__init__(self._app)
        self._chunks = chunks
        self._done = done
        self._timeline = timeline
        self.asked: list[dict[str, Any]] = []

    async def _app(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["path"].startswith("/admin"):
            await answer(send, self._timeline, {"wan_bytes": 20_100_000})
            return
        self.asked.append(json.loads((await receive())["body"]))
        events = [*(json.dumps(chunk) for chunk in self._chunks), *(["[DONE]"] if self._done else [])]
        headers = {"x-pdd-plan": "relay", "x-pdd-reason": "wan_slow", "x-request-id": "r1"}
        await answer(send, 200, "".join(f"data: {event}\n\n" for event in events).encode(), headers)


async def talk(gateway: ScriptedGateway, *prompts: str, colour: bool = False, words: int = 0) -> str:
    """Ask, and return what was printed."""
    screen = StringIO()
    console = Console(
        file=screen, force_terminal=colour, color_system="truecolor" if colour else None, no_color=not colour, width=60
    )
    async with gateway, httpx.AsyncClient(base_url=gateway.url) as client:
        one = Talk(client, console, MODEL, 9, words)
        try:
            for prompt in prompts:
                await one.ask(prompt)
        except CannotAsk as error:
            return f"{screen.getvalue()}!{error}"
    return screen.getvalue()


async def test_without_colour_marks_tell_who_made_what() -> None:
    """Each change of role is marked, the text between the marks is the answer's own, and figures follow."""
    rest = {"choices": [{"delta": {"content": "\ufffd"}}]}
    told = await talk(ScriptedGateway([*RELAYED, rest, USAGE]), "Well?")
    text, figures = told.splitlines()
    assert text == "|P|The|RLD| fox runs|MD|.\ufffd"
    assert re.fullmatch(
        r"tokens P 1, RLD 3, MD 1 · relay \(wan slow\) · first token after [\d.]+ m?s · longest joint gap [\d.]+ m?s · "
        r"prompt 5012 tokens, 12 of them cached · 20.1 MB over the line · request r1",
        figures,
    )


async def test_with_colour_joints_are_bars() -> None:
    """Each role has the page's colour, and a bar stands only where another role goes on."""
    told = await talk(ScriptedGateway(RELAYED), "Well?", colour=True)
    text, _, figures = told.partition("\n")
    violet, amber, teal = (f"38;2;{rgb}m" for rgb in ("176;74;232", "217;119;6", "20;184;166"))
    assert re.sub("\x1b\\[[\\d;]*m", "", text) == "The┃ fox runs┃."
    assert text.index(violet) < text.index("The") < text.index(amber) < text.index("fox") < text.index(teal)
    assert all(colour in figures for colour in (violet, amber, teal))


async def test_tokens_are_counted_by_chunks_where_no_ids_are_told() -> None:
    """Some servers that requests are passed on to know nothing of ids."""
    told = await talk(ScriptedGateway([spell_chunk(None, "Yes", 0), spell_chunk(None, ".", 0)]), "Well?")
    assert "tokens other 2" in told


async def test_a_stream_that_steers_the_terminal_does_not() -> None:
    """Control characters of a model come out as signs of replacement; line feeds stay."""
    told = await talk(ScriptedGateway([spell_chunk("MD", "a\x1b[2J\x07\tb\nc\x9b")]), "Well?")
    assert re.match("\\|MD\\|a\ufffd\\[2J\ufffd +b\nc\ufffd\n", told)


async def test_a_conversation_has_its_turns() -> None:
    """The second question goes with the first and its answer, without the thoughts."""
    gateway = ScriptedGateway([spell_chunk("MD", "", reasoning="Hm. "), spell_chunk("MD", "Yes.")])
    told = await talk(gateway, "One?", "Two?")
    assert told.count("|MD|Hm. Yes.") == 2
    assert [turn["content"] for turn in gateway.asked[1]["messages"]] == ["One?", "Yes.", "Two?"]


async def test_a_long_prompt_is_a_new_one_each_time() -> None:
    """The text before the prompt is as long as asked for and another one each time; alone it asks something itself."""
    gateway = ScriptedGateway(RELAYED)
    await talk(gateway, "And you?", "", words=1500)
    first, second = (asked["messages"][-1]["content"] for asked in gateway.asked)
    assert first.endswith("\n\nAnd you?") and "Tell me about the" in second.rpartition("\n\n")[2]
    assert all(1200 < len(one.split()) < 1800 for one in (first, second)) and first[:500] != second[:500]


@pytest.mark.parametrize(
    ("gateway", "words"),
    [
        (ScriptedGateway(RELAYED, done=False), "!the answer broke off"),
        (ScriptedGateway([*RELAYED, {"error": {"message": "engine died"}}]), "!engine died"),
    ],
    ids=["cut", "error"],
)
async def test_an_answer_that_fails_says_so_after_what_came(gateway: ScriptedGateway, words: str) -> None:
    """What came stays, its figures are told, and so is why there is no more."""
    told = await talk(gateway, "Well?")
    assert told.startswith("|P|The|RLD| fox runs|MD|.\ntokens P 1, RLD 3, MD 1") and told.endswith(words)


async def test_what_is_not_told_is_not_made_up() -> None:
    """Without the trace tokens are nobody's, with a sentence why; without a timeline no bytes are told."""
    told = await talk(ScriptedGateway([spell_chunk(None, "Yes.")], timeline=401), "Well?")
    assert told.startswith("|other|Yes.\ntokens other 1") and "line" not in told.splitlines()[1]
    assert UNTOLD in told


async def test_a_gateway_answers(desk: Desk, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """Through a real gateway: the model is found, tokens have their role, and the prompt may come by standard input."""
    url = str(desk.client.base_url)
    assert await pdd("chat", "--url", url, "--tokens", "3", "What of it?") == 0
    told = capsys.readouterr().out
    assert "|RLD|" in told and "tokens P 1, RLD 2 · direct (under one chunk)" in told and "tokens, 0 of them" in told
    monkeypatch.setattr("sys.stdin", StringIO("And that?"))
    assert await pdd("chat", "--url", url, "--model", MODEL, "--tokens", "2") == 0
    assert "tokens P 1, RLD 1" in capsys.readouterr().out


async def test_a_relay_shows_both_decoders(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    """A long prompt is relayed: P's token, then RLD's."""
    assert await pdd("chat", "--url", str(desk.client.base_url), "--tokens", "40", "--long") == 0
    told = capsys.readouterr().out
    assert "|RLD|" in told and "tokens P 1, RLD 39 · relay (wan slow)" in told


async def test_refusals_are_told_in_plain_words(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown model is the gateway's own sentence, and a gateway that is not there has its own."""
    assert await pdd("chat", "--url", str(desk.client.base_url), "--model", "nosuch", "Well?") == 1
    assert "nosuch" in capsys.readouterr().err
    async with ScriptedGateway([]) as gateway:
        gone = gateway.url
    assert await pdd("chat", "--url", gone, "Well?") == 1
    assert f"no gateway answers at {gone}" in capsys.readouterr().err
