"""What the commands that ask a running gateway share: where it is, the key, and failures in plain words."""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Mapping

import httpx
import msgspec
import uvloop
from rich.console import Console

from gateway.errors import reason_of
from gateway.operator.terminal import plain

URL = "http://127.0.0.1:8000"
CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S = 10.0, 300.0
WIDTH = 150
"""Where no terminal says how wide it is."""
INTERRUPTED = 130


class CannotAsk(Exception):
    """There is no answer, or no more of it; the message is for the user."""


def add_gateway(parser: argparse.ArgumentParser, whose_key: str) -> None:
    """Declare where the gateway is, and the key."""
    parser.add_argument("--url", default=URL, metavar="URL", help="the gateway's address (default: %(default)s)")
    parser.add_argument("--key-env", metavar="NAME", help=f"the environment variable that holds {whose_key}")


def open_client(args: argparse.Namespace) -> httpx.AsyncClient:
    """Return a client of the gateway. Raises CannotAsk."""
    headers: dict[str, str] = {}
    if args.key_env is not None:
        key = os.environ.get(args.key_env, "").strip()
        if not key or not key.isascii():
            raise CannotAsk(f"--key-env: the environment variable {args.key_env} holds no key")
        headers["authorization"] = f"Bearer {key}"
    try:
        # Clients of the API have /v1 in their base URL, so people paste it.
        return httpx.AsyncClient(
            base_url=args.url.rstrip("/").removesuffix("/v1"),
            headers=headers,
            timeout=httpx.Timeout(CONNECT_TIMEOUT_S, read=ANSWER_TIMEOUT_S),
        )
    except httpx.InvalidURL as error:
        raise CannotAsk(f"--url: {error}") from None


def open_console() -> Console:
    """Return what the command prints on."""
    width = None if sys.stdout.isatty() else WIDTH
    return Console(width=width, emoji=False, markup=False, highlight=False, soft_wrap=False)


def run_asking(name: str, args: argparse.Namespace, work: Callable[[asyncio.Runner, httpx.AsyncClient], None]) -> int:
    """Run a command's work with a client of its gateway, or say what went wrong; the exit status."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            client = open_client(args)
            try:
                work(runner, client)
            except httpx.HTTPError as error:
                raise CannotAsk(spell_failure(client, error)) from None
            except msgspec.DecodeError:
                raise CannotAsk(f"{client.base_url} answers, and not as a gateway does") from None
            finally:
                runner.run(client.aclose())
    except CannotAsk as error:
        print(f"pdd {name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


async def check_answer(response: httpx.Response, words: Mapping[int, str]) -> None:
    """Raise CannotAsk unless the gateway said yes. ``words`` for a status go before the gateway's own."""
    if response.status_code == 200:
        return
    try:
        told = msgspec.json.decode(await response.aread())["error"]["message"]
    except (msgspec.DecodeError, KeyError, TypeError):
        told = f"{response.url} answers {response.status_code}, and not as a gateway does"
    raise CannotAsk(words.get(response.status_code) or plain(str(told)))


def spell_failure(client: httpx.AsyncClient, error: httpx.HTTPError) -> str:
    """Say why nobody answered."""
    if isinstance(error, httpx.UnsupportedProtocol):
        return f"--url {client.base_url}: it must begin with http:// or https://"
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return f"no gateway answers at {client.base_url} ({reason_of(error)})"
    return f"the gateway at {client.base_url} broke off ({reason_of(error)})"
