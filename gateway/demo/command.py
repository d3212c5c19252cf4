"""``pdd demo``: two regions on this machine, five scenarios, a table, and a gateway to play with."""

import argparse
import asyncio
import os
import signal
import sys
import webbrowser
from collections.abc import Coroutine, Mapping
from pathlib import Path

import httpx
import msgspec
import uvloop
import yaml
from rich.console import Console

from backends.engines.reference.demo_model import MODEL_DIR
from backends.engines.reference.demo_model.prompts import long_prompt
from backends.transport.lifetime import die_with_parent
from backends.transport.serving import CannotListen, ServedApp, bind, parse_listen, serve_sites
from gateway.app import Gateway, open_gateway
from gateway.config.settings import parse_settings
from gateway.demo.cluster import MODEL, Cluster, ClusterPlan, run_cluster
from gateway.demo.processes import DemoFailed
from gateway.demo.progress import ScenarioProgress
from gateway.demo.report import print_answer, print_explain, print_table, print_usage
from gateway.demo.scenarios import ScenarioStage, measure_rtt, run_scenarios, user, warm_up
from gateway.http.edge import EdgeProtocol
from policies.rules import Rules

CONFIG, REQUEST = "gateway.yaml", "request.json"
TOKENS_PER_WORD = 1.25
LONGEST_ANSWER_TOKENS = 2000
SHOWN_CROSSING_S = 0.8
SAMPLE_TOKENS = 600


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="end after the table instead of serving")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--model", type=Path, default=MODEL_DIR, metavar="DIR", help="any Llama or Qwen directory")
    parser.add_argument("--listen", default="127.0.0.1:8000", metavar="HOST:PORT", help="the gateway's address")
    parser.add_argument("--rate-mbit", type=float, default=30.0, help="rate of the link between the regions")
    parser.add_argument("--delay-ms", type=float, default=15.0, help="its one-way delay")
    parser.add_argument("--words", type=int, default=4000, help="words in the prompts")
    parser.add_argument(
        "--tokens", type=int, help="tokens in each answer; default: as many as RLD makes while the KV crosses, and more"
    )
    parser.add_argument(
        "--browser",
        action=argparse.BooleanOptionalAction,
        default=has_desktop(os.environ, sys.stdout.isatty()),
        help="open the operator's page when all is ready (default: where there is a desktop)",
    )
    parser.add_argument("--die-with-parent", action="store_true", help="end when the starting process ends")


def has_desktop(environment: Mapping[str, str], at_terminal: bool) -> bool:
    """Whether somebody sits before a screen that a browser can open on."""
    return at_terminal and any(environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def run(args: argparse.Namespace) -> int:
    """Run the demo; 0 when every answer was the single engine's."""
    if args.die_with_parent:
        die_with_parent(signal.SIGTERM, parent_pid=os.getppid())
    console = Console(width=None if sys.stdout.isatty() else 150)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_demo(args, console))
    except (DemoFailed, CannotListen, ValueError, OSError) as error:
        sys.stderr.write(f"pdd demo: {error}\n")
    except httpx.HTTPError as error:
        sys.stderr.write(f"pdd demo: a request failed: {error}\n")
    except KeyboardInterrupt:
        console.print("stopped")
    return 1


async def _demo(args: argparse.Namespace, console: Console) -> int:
    if not (args.model / "config.json").is_file():
        raise DemoFailed(f"--model {args.model}: there is no config.json")
    host, port = parse_listen(args.listen)
    listener = bind(host, port)
    plan = ClusterPlan(args.model, args.rate_mbit, args.delay_ms)
    async with run_cluster(plan, lambda step: console.print(f"[dim]{step}[/dim]")) as cluster:
        document = cluster.settings(args.listen)
        settings = parse_settings(document)
        (cluster.folder / CONFIG).write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        async with open_gateway(settings) as gateway:
            stop = asyncio.Event()
            serving = asyncio.create_task(serve_sites(ServedApp(gateway.app, listener, EdgeProtocol), on_stop=stop.set))
            url = f"http://{host}:{listener.getsockname()[1]}"
            try:
                status = await unless(stop, _show(args, console, cluster, gateway, url))
                if status is None:
                    console.print("stopped")
                    return 1
                if not args.once:
                    await stop.wait()
                return status
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)


async def unless(stop: asyncio.Event, work: Coroutine[None, None, int]) -> int | None:
    """Return what comes of ``work``; None: it was given up for ``stop``."""
    task, halt = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((task, halt), return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        for one in (task, halt):
            one.cancel()
        await asyncio.gather(task, halt, return_exceptions=True)


async def _show(args: argparse.Namespace, console: Console, cluster: Cluster, gateway: Gateway, base_url: str) -> int:
    rtt_s = await measure_rtt(cluster.through_link["md1"]) - await measure_rtt(cluster.children["md1"].url)
    console.print("[dim]warming up[/dim]")
    warm = await warm_up(base_url)
    tokens = args.tokens or outlast_transfer(args, gateway.service.models[MODEL].kv_bytes_per_token, warm.quick_itl_s)
    progress = ScenarioProgress(console, cluster.wan_bytes)
    stage = ScenarioStage(cluster, gateway, base_url, progress.watch)
    runs = await run_scenarios(stage, args.words, tokens)
    print_table(console, runs, rtt_s)
    print_answer(console, runs["catch_up"])
    identical = all(run.identical for run in runs.values())
    verdict = "are those" if identical else "[bold red]are not those[/bold red]"
    console.print(f"The token ids of all five answers {verdict} of a greedy run on one engine.")
    if args.json is not None:
        figures = {name: run.figures() for name, run in runs.items()}
        document = {"tokens_identical": identical, "wan_rtt_s": round(rtt_s, 4), **figures}
        await asyncio.to_thread(args.json.write_bytes, msgspec.json.format(msgspec.json.encode(document)))
    if not args.once:
        gateway.rulebook.replace(Rules())
        words = fit_crossing(args, gateway.service.models[MODEL].kv_bytes_per_token)
        print_usage(console, base_url, words, await asyncio.to_thread(write_samples, cluster.folder, words))
        request = {"model": MODEL, "max_tokens": tokens, "messages": [user(long_prompt(5, args.words))]}
        (cluster.folder / REQUEST).write_bytes(msgspec.json.encode(request))
        print_explain(console, cluster.folder / CONFIG, cluster.folder / REQUEST)
        console.print("Serving until Ctrl-C.")
        if args.browser:
            await asyncio.to_thread(webbrowser.open, f"{base_url}/ui#playground")
    return 0 if identical else 1


def write_samples(folder: Path, words: int) -> dict[str, Path]:
    """Write requests to try by hand, whose new prompts are relayed; return them by what they show."""
    body = {"model": MODEL, "stream": True, "temperature": 0, "max_tokens": SAMPLE_TOKENS}
    path = folder / "relay.json"
    path.write_bytes(msgspec.json.encode(body | {"messages": [user(long_prompt(6, words))]}))
    return {"An answer that is relayed while its prompt is new": path}


def fit_crossing(args: argparse.Namespace, kv_bytes_per_token: int) -> int:
    """Words of a prompt whose KV takes long enough to cross for a relay, and not as long as an answer."""
    return int(SHOWN_CROSSING_S * args.rate_mbit * 1e6 / 8 / (TOKENS_PER_WORD * kv_bytes_per_token))


def outlast_transfer(args: argparse.Namespace, kv_bytes_per_token: int, itl_s: float) -> int:
    """Length of an answer that RLD cannot end before a cold prompt's KV has crossed, so that MD has its part."""
    prompt_bytes = args.words * TOKENS_PER_WORD * kv_bytes_per_token
    crossing_s = prompt_bytes * 8 / (args.rate_mbit * 1e6)
    return min(LONGEST_ANSWER_TOKENS, 60 + int(1.2 * crossing_s / max(itl_s, 0.001)))
