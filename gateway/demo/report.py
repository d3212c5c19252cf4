"""What the demo prints."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.demo.scenarios import ScenarioRun
from gateway.operator.terminal import ROLE_STYLES, plain

BEFORE_JOINT, AFTER_JOINT = 300, 400
"""Characters of an answer that are shown at a joint."""
TITLES = {
    "naive": "naive: MD makes every token, after the KV has crossed",
    "one_shot": "one shot: RLD writes meanwhile, then MD goes on",
    "fused": "fused: P itself writes meanwhile, then MD goes on",
    "catch_up": "catch up: RLD writes meanwhile, and MD follows in rounds",
    "second_turn": "second turn: MD has the conversation's KV",
}


def print_table(console: Console, runs: dict[str, ScenarioRun], rtt_s: float) -> None:
    table = Table(title=f"Two regions, WAN round trip {rtt_s * 1000:.0f} ms")
    for name in (
        "scenario",
        "plan",
        "prompt tokens",
        "TTFT s",
        "2nd token ms",
        "joint gap ms",
        "median ITL ms",
        "P / RLD / MD",
        "WAN MB",
    ):
        table.add_column(name, justify="left" if name in ("scenario", "plan") else "right", no_wrap=True)
    for name, run in runs.items():
        table.add_row(
            name.replace("_", " "),
            f"{run.plan} ({run.reason.replace('_', ' ')})",
            str(run.prompt_tokens),
            f"{run.ttft_s:.2f}",
            f"{run.second_token_s * 1000:.0f}",
            f"{run.joint_gap_s * 1000:.0f}",
            f"{run.median_itl_s * 1000:.1f}",
            " / ".join(str(count) for count in run.tokens.values()),
            f"{run.wan_bytes / 1e6:.2f}",
        )
    console.print(table)


def print_answer(console: Console, run: ScenarioRun) -> None:
    """The text around its joints, coloured by who made it."""
    legend = Text(" ").join(Text(role, colour) for role, colour in ROLE_STYLES.items())
    told = Text.assemble("The catch-up answer by who made it, ", legend, ", around its joints. ")
    told.append("It is made to go on beyond its end, to be long enough.", "dim")
    console.print(told)
    console.print(around_joints(run.pieces))


def around_joints(pieces: Sequence[tuple[str, str]]) -> Text:
    """Return a text by role with what lies far from any joint left out."""
    text, joints = Text(), []
    for at, (role, piece) in enumerate(pieces):
        if at and pieces[at - 1][0] != role:
            joints.append(len(text))
        text.append(plain(piece).replace("\n", " "), ROLE_STYLES.get(role, ""))
    shown, end = Text(), 0
    for joint in joints or [0]:
        start = max(end, joint - BEFORE_JOINT)
        if start > end:
            shown.append(" [...] ", "dim")
        end = max(end, min(len(text), joint + AFTER_JOINT))
        shown.append_text(text[start:end])
    return shown.append(" [...]", "dim") if end < len(text) else shown


def print_usage(console: Console, base_url: str, words: int, requests: Mapping[str, Path]) -> None:
    """How to look at it and try it by hand. ``words``: of a prompt that is relayed. ``requests``: bodies by what they
    show.
    """
    console.print(f"\nThe operator's page, with a playground: {base_url}/ui", highlight=False)
    console.print(f"The same in a terminal: pdd top --url {base_url}", highlight=False)
    chat = f"pdd chat --long --words {words} --url {base_url}"
    console.print(f"Ask for a relay, and see who makes each token: {chat}", highlight=False)
    console.print(f"Base URL for any OpenAI client: {base_url}/v1", highlight=False)
    for what, body in requests.items():
        headers = "-H 'content-type: application/json' -H 'x-pdd-trace: 1'"
        console.print(f"{what}:", highlight=False)
        curl = f"curl -N {base_url}/v1/chat/completions {headers} -d @{body}"
        console.print(curl, highlight=False, soft_wrap=True)


def print_explain(console: Console, config: Path, request: Path) -> None:
    """How to see what the gateway would do with a request, and what it knows."""
    console.print("\nWhat it would do with a long new prompt, and what it knows of caches:", highlight=False)
    console.print(f"pdd explain --config {config} --request {request}", highlight=False, soft_wrap=True)
    console.print(f"pdd index stats --config {config}", highlight=False, soft_wrap=True)
