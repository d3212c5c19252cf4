"""The edge builds on classes that uvicorn keeps to itself; whatever of them changes is said here, before it is felt."""

import asyncio
import hashlib
import inspect
import re
import tomllib
from importlib.metadata import version

import pytest
import uvicorn
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.http import edge
from gateway.http.edge import EdgeProtocol
from tests.readme import ROOT

ADVICE = f"""
uvicorn {version("uvicorn")} is not the uvicorn that {EdgeProtocol.__module__} was written for.
1. Read what changed in uvicorn/protocols/http/httptools_impl.py, and adapt EdgeProtocol and send_unchunked to it.
2. Run the tests of the edge: tests/gateway, -k "edge or tls or odd_requests".
3. Only then change what this file expects, and the bounds of uvicorn in pyproject.toml."""

SOURCE_SHA256 = "1d4e1c579df4168433a61a01f10c628b31c1790e72dd9769d2b8633b22214033"
"""Of httptools_impl.py, the same in every version within the bounds: what it does can change behind any signature."""

SIGNATURES: list[tuple[type, str, str]] = [
    (HttpToolsProtocol, "__init__", "(self, config, server_state, app_state, _loop=None)"),
    (HttpToolsProtocol, "connection_made", "(self, transport)"),
    (HttpToolsProtocol, "connection_lost", "(self, exc)"),
    (HttpToolsProtocol, "data_received", "(self, data)"),
    (HttpToolsProtocol, "on_message_begin", "(self)"),
    (HttpToolsProtocol, "on_header", "(self, name, value)"),
    (HttpToolsProtocol, "on_headers_complete", "(self)"),
    (HttpToolsProtocol, "on_body", "(self, body)"),
    (HttpToolsProtocol, "on_message_complete", "(self)"),
    (HttpToolsProtocol, "on_response_complete", "(self)"),
    (HttpToolsProtocol, "timeout_keep_alive_handler", "(self)"),
    (HttpToolsProtocol, "_unset_keepalive_if_required", "(self)"),
    (RequestResponseCycle, "send", "(self, message)"),
    (uvicorn.Server, "serve", "(self, sockets=None)"),
    (uvicorn.Server, "startup", "(self, sockets=None)"),
    (uvicorn.Server, "capture_signals", "(self)"),
]

LEFT_ALONE = {"on_url", "eof_received", "pause_writing", "resume_writing"}
"""What the parser and the transport call, and the edge does not override."""


SETS = r"self\.(\w+)(?:: [^=\n]+)? = "


def test_version_is_within_the_bounds() -> None:
    """pyproject.toml bounds uvicorn on both sides, and what is installed and pinned keeps to it."""
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    bounds = re.fullmatch(r"uvicorn>=(\d+)\.(\d+),<(\d+)\.(\d+)", next(n for n in needs if n.startswith("uvicorn")))
    assert bounds, "uvicorn needs a lower and an upper bound in pyproject.toml: uvicorn>=A.B,<C.D"
    pinned = re.search(r"^uvicorn==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned
    lowest, too_high = tuple(map(int, bounds.groups()[:2])), tuple(map(int, bounds.groups()[2:]))
    for found in (version("uvicorn"), pinned[1]):
        assert lowest <= tuple(map(int, found.split(".")[:2])) < too_high, ADVICE


@pytest.mark.parametrize(("kind", "name", "signature"), SIGNATURES)
def test_signatures(kind: type, name: str, signature: str) -> None:
    """What is overridden or called is there, and takes what it took."""
    method = getattr(kind, name, None)
    assert method is not None, f"{kind.__name__}.{name} is gone.{ADVICE}"
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(inspect.unwrap(method)).parameters.values()
    ]
    assert str(inspect.Signature(parameters)) == signature, f"{kind.__name__}.{name} takes something else.{ADVICE}"


def test_every_override_is_listed() -> None:
    """The list above holds each method of uvicorn's that the edge has its own of."""
    listed = {name for kind, name, _ in SIGNATURES if kind is HttpToolsProtocol}
    overridden = {
        name for name, own in vars(EdgeProtocol).items() if callable(own) and hasattr(HttpToolsProtocol, name)
    }
    assert "data_received" in overridden and overridden <= listed


def test_nobody_else_calls_in() -> None:
    """The parser and the transport call what they called: a new way in would lead past the edge's checks."""
    listed = {name for kind, name, _ in SIGNATURES if kind is HttpToolsProtocol}
    transports = {name for kind in (asyncio.Protocol, asyncio.BufferedProtocol) for name in dir(kind) if name[0] != "_"}
    ways_in = {name for name in vars(HttpToolsProtocol) if name.startswith("on_") or name in transports}
    assert ways_in <= listed | LEFT_ALONE, f"New: {sorted(ways_in - listed - LEFT_ALONE)}.{ADVICE}"


@pytest.mark.parametrize(
    ("kind", "pattern", "known"),
    [
        (HttpToolsProtocol, r"self\.(\w+)", {"transport", "cycle", "pipeline", "timeout_keep_alive_task"}),
        (RequestResponseCycle, r"cycle\.(\w+)", {"response_complete", "expected_content_length"}),
    ],
)
def test_attributes(kind: type, pattern: str, known: set[str]) -> None:
    """Each attribute that the edge reads or sets, and does not make itself, is one of uvicorn's."""
    own = set(vars(EdgeProtocol)) | set(re.findall(SETS, inspect.getsource(EdgeProtocol.__init__)))
    used = set(re.findall(pattern, inspect.getsource(edge))) - own
    there = set(dir(kind)) | set(re.findall(SETS, inspect.getsource(kind)))
    assert known <= used
    assert used <= there, f"{kind.__name__} lacks {sorted(used - there)}.{ADVICE}"


def test_the_source_is_the_one_that_was_read() -> None:
    """The text of uvicorn's class is the one that the edge was checked against."""
    digest = hashlib.sha256(inspect.getsource(httptools_impl).encode()).hexdigest()
    assert digest == SOURCE_SHA256, f"httptools_impl.py was edited.{ADVICE}"
