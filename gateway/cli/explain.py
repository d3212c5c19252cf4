"""``pdd explain``: what the gateway would do with a request, and why; nothing is sent to any engine."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gateway.app import Gateway
from gateway.cli.reading import (
    add_config,
    add_tenant,
    open_observer,
    print_json,
    read_file,
    run_to_end,
)
from gateway.config.settings import Settings, load_settings
from gateway.http.body import parse_object
from gateway.operator.explain import TENANT


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_config(parser)
    add_tenant(parser)
    parser.add_argument(
        "--request",
        required=True,
        type=Path,
        metavar="FILE",
        help="JSON body of /v1/chat/completions or /v1/completions; of several choices the first is explained, "
        "as for a gateway whose singular budget is unspent",
    )


def run(args: argparse.Namespace) -> int:
    """Explain one request; the exit status."""

    async def ask(settings: Settings, body: bytes) -> dict[str, Any]:
        async with open_observer(settings) as seen:
            return await explain(seen.gateway, body, args.tenant)

    def show(explained: dict[str, Any]) -> None:
        if args.json:
            print_json(explained)
        else:
            print("\n".join(describe(explained)))

    return run_to_end("explain", lambda: ask(load_settings(args.config), read_file(args.request)), show)


async def explain(gateway: Gateway, body: bytes, tenant: str = TENANT) -> dict[str, Any]:
    """Decide a tenant's request as the gateway would, see ``explain_decision``. Raises GatewayError."""
    return await gateway.explainer.explain(parse_object(body), len(body), tenant)


def describe(explained: dict[str, Any]) -> Iterator[str]:
    """Give what ``explain`` found as lines to read."""
    facts, estimate, plan = explained["facts"], explained["estimate"], explained["plan"]
    yield f"request    {facts['model']}, {facts['prompt_tokens']} prompt tokens, {_answer(facts)}"
    if facts["unsplittable"]:
        yield f"           one engine must answer: {facts['unsplittable']}"
    for name, hit in sorted(facts["hits"].items()):
        rank = f" rank {facts['ranks'][name]}" if name in facts["ranks"] else ""
        yield f"cached     {name}{rank}: {_hit(hit)}"
    asked = {one["id"] for score in explained["scores"] for one in score["candidates"]}
    yield from (f"cached     {name}: unknown" for name in sorted(asked - facts["hits"].keys()))
    yield f"estimate   {_estimate(estimate)}"
    for score in explained["scores"]:
        for one in sorted(score["candidates"], key=lambda one: -one["total"]):
            signals = ", ".join(f"{name} {value:.2f}" for name, value in one["signals"].items())
            mark = "->" if one["id"] == score["chosen"] else "  "
            yield f"scores     {score['role']:3} {mark} {one['id']}: {one['total']:.3f} ({signals})"
        for name, why in sorted(score["rejected"].items()):
            yield f"scores     {score['role']:3}    {name}: left out, {why}"
    path = " -> ".join(plan[role] for role in ("prefill", "relay", "main") if plan[role])
    link = f", KV over {' -> '.join(plan['link'])}" if plan["link"] else ""
    marks = "".join(f", {mark}" for mark in ("classic", "fused", "lends") if plan[mark])
    yield f"plan       {plan['kind']}: {path}{link}{marks}"
    yield f"reason     {explained['reason']}"


def _answer(facts: dict[str, Any]) -> str:
    limit, expected = facts["max_output_tokens"], facts["predicted_output_tokens"]
    most = "no limit" if limit is None else f"at most {limit} answer tokens"
    return most if expected in (None, limit) else f"{most}, {expected} expected"


def _hit(hit: dict[str, Any] | None) -> str:
    if hit is None:
        return "unknown"
    store = f", {hit['store_tokens']} in its region's store" if hit["store_tokens"] else ""
    return f"{hit['tokens']} tokens{store}{', predicted' if hit['predicted'] else ''}"


def _estimate(estimate: dict[str, Any] | None) -> str:
    if estimate is None:
        return "no link is involved"
    if estimate["total_s"] is None:
        return f"unknown, at worst {estimate['worst_s']:.3f} s"
    return (
        f"{estimate['missing_tokens']} tokens ({estimate['wan_bytes'] / 1e6:.1f} MB) must cross: "
        f"{estimate['total_s']:.3f} s (queue {estimate['queue_s']:.3f}, transfer {estimate['transfer_s']:.3f}, "
        f"round trip {estimate['rtt_s']:.3f}; {estimate['worst_s']:.3f} if nothing was there)"
    )
