"""Claude Code and Codex as people run them, without an account, before a relay: one tool is called, and told of.

``python -m tests.compat.command_lines FOLDER``: of the packages' environment, made by npm.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tests.compat.stand import Stand, Writer, open_stand
from tests.compat.table import Outcome
from tests.gateway.relay.stage import MODEL

PACKAGES = {"claude-code": "@anthropic-ai/claude-code", "codex": "@openai/codex"}
FAMILY = "qwen3"
CONTEXT_TOKENS = 400_000
"""Their instructions and tools have some 60,000 tokens in the small vocabulary of the stand."""
RUN_S = 240.0
ASK = "Call the shell."
SAID = "made-$((40 + 2))"
MADE = "made-42"
CALLS = {
    "claude-code": f'{{"name": "Bash", "arguments": {{"command": "echo {SAID}", "description": "Say it"}}}}',
    "codex": f'{{"name": "exec_command", "arguments": {{"cmd": "echo {SAID}"}}}}',
}
CODEX_CONFIG = """
model = "{model}"
model_provider = "pdd"
web_search = "disabled"
[model_providers.pdd]
name = "pdd"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "PDD_KEY"
"""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """How one is run. ``settings``: environment variables."""

    command: Sequence[str | Path]
    settings: Mapping[str, str]


def claude_code(binaries: Path, url: str, home: Path) -> CommandLine:
    """Claude Code, by its environment variables."""
    settings = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "any",
        "ANTHROPIC_MODEL": MODEL,
        "ANTHROPIC_SMALL_FAST_MODEL": MODEL,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    return CommandLine([binaries / "claude", "-p", ASK, "--allowedTools", "Bash"], settings)


def codex(binaries: Path, url: str, home: Path) -> CommandLine:
    """Codex, by its settings file."""
    folder = home / ".codex"
    folder.mkdir()
    (folder / "config.toml").write_text(CODEX_CONFIG.format(model=MODEL, url=url), encoding="utf-8")
    free = "--dangerously-bypass-approvals-and-sandbox"
    return CommandLine([binaries / "codex", "exec", "--skip-git-repo-check", free, ASK], {"PDD_KEY": "any"})


MAKERS = {"claude-code": claude_code, "codex": codex}


def make_writer(name: str) -> type[Writer]:
    """What the model says: one call, and then what the tool has told."""

    class Agent(Writer):
        def _text(self, conversation: str, body: dict[str, Any]) -> str:
            _, called, result = conversation.rpartition("<|im_start|>tool")
            if called:
                said = MADE if MADE in result.partition("<|im_end|>")[0] else "nothing"
                return f"<think>\nso\n</think>\n\nThe shell said {said}."
            if ASK in conversation:
                return f"<think>\nso\n</think>\n\nSure.\n<tool_call>\n{CALLS[name]}\n</tool_call>"
            return "<think>\nso\n</think>\n\nA title."

    return Agent


async def try_one(name: str, folder: Path) -> Outcome:
    """Run one to its end."""
    binaries = folder / "node_modules" / ".bin"
    with tempfile.TemporaryDirectory() as place:
        home, work = Path(place) / "home", Path(place) / "work"
        home.mkdir()
        work.mkdir()
        writer = make_writer(name)
        async with open_stand(FAMILY, Path(place) / "model", writer, CONTEXT_TOKENS) as stand:
            line = MAKERS[name](binaries, stand.url, home)
            said = await _run(line, home, work)
            return Outcome(_version(name, folder), {"tools": _judge(said, stand)})


def _judge(said: str, stand: Stand) -> str:
    if f"The shell said {MADE}" not in said:
        return said[-400:] or "it said nothing"
    return "ok" if all(stand.legs.values()) else f"not relayed: {stand.legs}"


async def _run(line: CommandLine, home: Path, work: Path) -> str:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("ANTHROPIC", "OPENAI", "CLAUDE"))}
    process = await asyncio.create_subprocess_exec(
        *line.command,
        cwd=work,
        env={**kept, **line.settings, "HOME": str(home), "IS_SANDBOX": "1"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), RUN_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        return f"not done after {RUN_S:.0f} s"
    return said.decode(errors="replace")


def _version(name: str, folder: Path) -> str:
    package = folder / "node_modules" / PACKAGES[name] / "package.json"
    version: str = msgspec.json.decode(package.read_bytes())["version"]
    return f"{PACKAGES[name]} {version}"


def main(folder: Path) -> int:
    """Try both, and tell."""
    outcomes = {name: asyncio.run(try_one(name, folder)) for name in PACKAGES}
    for name, outcome in outcomes.items():
        print(f"{name} ({outcome.version}): {outcome.features['tools']}", flush=True)
    return 0 if all(outcome.features["tools"] == "ok" for outcome in outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
