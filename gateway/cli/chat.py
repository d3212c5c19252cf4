"""``pdd chat``: asks a gateway from the terminal, and shows who made each token of the answer."""

import argparse
import asyncio
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec
from rich.console import Console
from rich.text import Text

from backends.engines.reference.demo_model.prompts import long_prompt
from backends.transport.sse import EventTooLarge, SseParser
from gateway.cli.answers import UNKNOWN, AnswerPiece, FollowedAnswer
from gateway.cli.asking import (
    CannotAsk,
    add_gateway,
    check_answer,
    open_console,
    run_asking,
)
from gateway.operator.terminal import ROLE_STYLES, plain

USUAL_TOKENS, LONG_WORDS = 600, 4000
DONE = b"[DONE]"
JOINT = "┃"
WORDS = {401: "an API key is needed, and the one given is not it: name its environment variable with --key-env"}
UNTOLD = "The gateway does not tell who made which token: the tenant's rule `debug` is off, or it has passed this on."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    text = "what to ask (default: standard input; at a terminal a conversation, until Ctrl-D)"
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help=text)
    add_gateway(parser, "the API key")
    parser.add_argument("--model", metavar="NAME", help="(default: the first that the gateway lists)")
    text = "put a new text before the prompt, too long for a slow line: that makes a relay"
    parser.add_argument("--long", action="store_true", help=text)
    text = "how long the text of --long is (default: %(default)s)"
    parser.add_argument("--words", type=int, default=LONG_WORDS, metavar="N", help=text)
    text = "the longest answer (default: %(default)s)"
    parser.add_argument("--tokens", type=int, default=USUAL_TOKENS, metavar="N", help=text)


def run(args: argparse.Namespace) -> int:
    """Ask; the exit status."""

    def work(runner: asyncio.Runner, client: httpx.AsyncClient) -> None:
        console = open_console()
        model = args.model or runner.run(find_model(client))
        talk = Talk(client, console, model, args.tokens, args.words if args.long else 0)
        # Prompts are read outside of the loop, which would keep Ctrl-C for itself.
        for prompt in read_prompts(args, console):
            runner.run(talk.ask(prompt))

    return run_asking("chat", args, work)


def read_prompts(args: argparse.Namespace, console: Console) -> Iterable[str]:
    """Give the prompt of the command line, of standard input, or one after the other as they are typed."""
    if args.prompt is not None:
        return [args.prompt]
    if args.long:
        return [""]
    if sys.stdin.isatty():
        return _read_typed(console)
    return [sys.stdin.read()]


def _read_typed(console: Console) -> Iterator[str]:
    with suppress(EOFError):
        while True:
            if prompt := console.input("> ").strip():
                yield prompt


async def find_model(client: httpx.AsyncClient) -> str:
    """Return the gateway's first model. Raises CannotAsk."""
    response = await client.get("/v1/models")
    await check_answer(response, WORDS)
    models = msgspec.json.decode(response.content)["data"]
    if not models:
        raise CannotAsk("the gateway has no model for this key")
    return str(models[0]["id"])


@dataclass(slots=True)
class Talk:
    """A conversation with one model."""

    client: httpx.AsyncClient
    console: Console
    model: str
    tokens: int
    """The longest answer."""
    words: int
    """Of a text before each prompt; 0: none."""
    turns: list[dict[str, str]] = field(default_factory=list)

    async def ask(self, prompt: str) -> None:
        """Ask, and print the answer as it comes and its figures. Raises CannotAsk and httpx.HTTPError."""
        self.turns.append({"role": "user", "content": self._lengthen(prompt) if self.words else prompt})
        answer = FollowedAnswer(sent_s=time.perf_counter())
        try:
            await self._stream(answer)
        finally:
            self.console.print()
            if answer.tokens:
                await self._find_wan_bytes(answer)
                self._print_figures(answer)
        self.turns.append({"role": "assistant", "content": answer.content})

    def _lengthen(self, prompt: str) -> str:
        # A text of its own each time, so that no cache has it.
        text = long_prompt(time.time_ns(), self.words)
        return "\n\n".join((text.rpartition("\n\n")[0], prompt)) if prompt else text

    async def _stream(self, answer: FollowedAnswer) -> None:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": self.turns,
            "max_tokens": self.tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        headers = {"x-pdd-trace": "1"}
        async with self.client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
            await check_answer(response, WORDS)
            answer.plan, answer.reason = response.headers.get("x-pdd-plan"), response.headers.get("x-pdd-reason")
            answer.request_id = response.headers.get("x-request-id")
            parser, ended = SseParser(), False
            async for part in response.aiter_bytes():
                for data in _read_events(parser, part):
                    ended = ended or data == DONE
                    if data != DONE:
                        self._show(answer.take(_read_chunk(data), time.perf_counter()))
        if not ended:
            raise CannotAsk("the answer broke off")

    def _show(self, pieces: list[AnswerPiece]) -> None:
        for piece in pieces:
            text = Text()
            if piece.after != piece.role and not self._is_coloured:
                text.append(f"|{piece.role}|")
            elif piece.after not in (None, piece.role):
                text.append(JOINT, "bold")
            text.append(plain(piece.text), ROLE_STYLES.get(piece.role, ""))
            self.console.print(text, end="", soft_wrap=True)

    @property
    def _is_coloured(self) -> bool:
        return self.console.is_terminal and not self.console.no_color

    async def _find_wan_bytes(self, answer: FollowedAnswer) -> None:
        """Look into the timeline, where this client may see it."""
        with suppress(httpx.HTTPError, msgspec.DecodeError):
            response = await self.client.get(f"/admin/requests/{answer.request_id}")
            if response.status_code == 200:
                answer.wan_bytes = msgspec.json.decode(response.content).get("wan_bytes")

    def _print_figures(self, answer: FollowedAnswer) -> None:
        line = Text("tokens ")
        for at, (role, count) in enumerate(answer.tokens.items()):
            line.append(f"{', ' if at else ''}{role} {count}", ROLE_STYLES.get(role, ""))
        for figure in answer.figures():
            line.append(f" · {figure}", "dim")
        self.console.print(line, soft_wrap=True)
        if set(answer.tokens) == {UNKNOWN}:
            self.console.print(Text(UNTOLD, "dim"), soft_wrap=True)


def _read_events(parser: SseParser, part: bytes) -> list[bytes]:
    try:
        return parser.feed(part)
    except EventTooLarge as error:
        raise CannotAsk(f"the answer is no answer of a gateway: {error}") from None


def _read_chunk(data: bytes) -> dict[str, Any]:
    chunk: dict[str, Any] = msgspec.json.decode(data)
    if "error" in chunk:
        raise CannotAsk(plain(chunk["error"]["message"]))
    return chunk
