"""What the demo prints."""

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.demo.scenarios import ScenarioRun
from gateway.operator.terminal import ROLE_STYLES

TITLES = {
    "naive": "naive: MD makes every token, after the KV has crossed",
    "one_shot": "relay, one-shot hand-off",
    "fused": "relay, P writes on itself",
    "catch_up": "relay, catch-up hand-off",
    "second_turn": "second turn of that conversation",
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
        table.add_column(name, justify="left" if name in ("scenario", "plan") else "right")
    for name, run in runs.items():
        table.add_row(
            TITLES[name],
            f"{run.plan} ({run.reason})",
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
    """The text, coloured by who made it."""
    text = Text()
    for role, piece in run.pieces:
        text.append(piece, style=ROLE_STYLES.get(role, ""))
    legend = Text()
    for role, colour in ROLE_STYLES.items():
        legend.append(f" {role} ", style=colour)
    console.print("The catch-up answer by role:", legend)
    console.print(text)


def print_usage(console: Console, base_url: str, model: str, words: int) -> None:
    """How to look at it and try it by hand. ``words``: of a prompt that is relayed."""
    console.print(f"\nThe operator's page, with a playground: {base_url}/ui", highlight=False)
    console.print(f"The same in a terminal: pdd top --url {base_url}", highlight=False)
    chat = f"pdd chat --long --words {words} --url {base_url}"
    console.print(f"Ask for a relay, and see who makes each token: {chat}", highlight=False)
    console.print(f"Base URL for any OpenAI client: {base_url}/v1", highlight=False)
    body = f'{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "Tell me a story."}}]}}'
    console.print(
        f"curl -N {base_url}/v1/chat/completions -H 'content-type: application/json' -H 'x-pdd-trace: 1' -d '{body}'",
        highlight=False,
        soft_wrap=True,
    )


def print_explain(console: Console, config: Path, request: Path) -> None:
    """How to see what the gateway would do with a request, and what it knows."""
    console.print("\nWhat it would do with a long new prompt, and what it knows of caches:", highlight=False)
    console.print(f"pdd explain --config {config} --request {request}", highlight=False, soft_wrap=True)
    console.print(f"pdd index stats --config {config}", highlight=False, soft_wrap=True)
