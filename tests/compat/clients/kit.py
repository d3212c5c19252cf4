"""What the clients' programs share; they run in an environment of their own, which has nothing of this project.

A program is ``python -m tests.compat.clients.NAME``. It reads a JSON list of base URLs from its input and writes one
JSON object: ``version``, and each feature's "ok" or what went wrong.
"""

import asyncio
import inspect
import json
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

MODEL = "demo"
KEY = "sk-any"
CHAT = "Hello."
CALL = "Call the tool for 東京."
PLACE: dict[str, Any] = {"city": "東京 {中}", "days": 3}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
FUNCTION: dict[str, Any] = {"name": "get", "description": "Look a place up.", "parameters": SCHEMA}
TOOL: dict[str, Any] = {"type": "function", "function": FUNCTION}
Feature = Callable[[str], Any]


def equal(found: object, wanted: object) -> None:
    """Raise AssertionError with both of them unless they are equal."""
    if found != wanted:
        raise AssertionError(f"{found!r} in place of {wanted!r}")


def refused(kind: type[Exception], ask: Callable[[], Any]) -> None:
    """Raise AssertionError unless the client raises its own error of that kind."""
    try:
        ask()
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


def run(packages: str, features: Mapping[str, Feature]) -> None:
    """Try each feature at each URL, and write what came of it. ``packages``: whose versions are told."""
    warnings.simplefilter("ignore")
    urls: list[str] = json.loads(sys.stdin.readline())
    found = {name: try_one(feature, urls) for name, feature in features.items()}
    told = ", ".join(f"{name} {version(name)}" for name in packages.split())
    print(json.dumps({"version": told, "features": found}))


def try_one(feature: Feature, urls: list[str]) -> str:
    """Return "ok", or the first thing that went wrong."""
    for url in urls:
        try:
            done = feature(url)
            if inspect.iscoroutine(done):
                asyncio.run(done)
        except Exception as error:  # whatever a client raises is what is to be told
            return f"{url}: {type(error).__name__}: {error}"[:400]
    return "ok"
