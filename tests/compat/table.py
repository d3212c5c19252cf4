"""Which clients are tried, and the table of what came of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FEATURES = (
    "chat",
    "stream",
    "tools",
    "tools_stream",
    "reasoning",
    "structured_output",
    "responses",
    "messages",
    "errors",
)


@dataclass(frozen=True, slots=True)
class Client:
    """A client; ``module``: its program in ``tests.compat.clients``, and the folder of its environment."""

    name: str
    module: str
    packages: tuple[str, ...]
    is_node: bool = False

    def command(self, environments: Path) -> list[str | Path]:
        """Return how its program is run."""
        folder = environments / self.module
        if self.is_node:
            return ["node", f"tests/compat/clients/{self.module}.mjs", folder]
        return [folder / "bin" / "python", "-m", f"tests.compat.clients.{self.module}"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a client; ``features`` by name: "ok", or what went wrong. ``version``: of its packages."""

    version: str
    features: Mapping[str, str]


CLIENTS = (
    Client("openai-python", "openai_python", ("openai",)),
    Client("anthropic-python", "anthropic_python", ("anthropic",)),
    Client("litellm", "litellm_python", ("litellm",)),
    Client("langchain", "langchain_python", ("langchain-openai", "langchain-anthropic")),
    Client("pydantic-ai", "pydantic_ai_python", ("pydantic-ai-slim[openai,anthropic]",)),
    Client("instructor", "instructor_python", ("instructor", "anthropic")),
    Client("openai-node", "openai_node", ("openai",), is_node=True),
    Client("anthropic-node", "anthropic_node", ("@anthropic-ai/sdk",), is_node=True),
    Client(
        "vercel-ai",
        "vercel_ai",
        ("ai", "@ai-sdk/openai-compatible", "@ai-sdk/openai", "@ai-sdk/anthropic", "zod"),
        is_node=True,
    ),
)


def draw(outcomes: Mapping[str, Outcome]) -> Sequence[str]:
    """Return the table as Markdown, a row for each client; "–": it has no such thing."""
    rows = [f"| client | {' | '.join(FEATURES)} |", "|---" * (len(FEATURES) + 1) + "|"]
    for name, outcome in outcomes.items():
        cells = ["–" if (end := outcome.features.get(one)) is None else mark(end) for one in FEATURES]
        rows.append(f"| {name} ({outcome.version}) | {' | '.join(cells)} |")
    return rows


def mark(end: str) -> str:
    """Return a cell."""
    return end if end == "ok" else "**no**"
