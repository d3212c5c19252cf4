"""One frame of ``pdd top``: the gateway, its rates, instances, lines and requests."""

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gateway.cli.top_state import Controls, WatchedState
from gateway.operator.terminal import ROLE_STYLES, plain, spell_bytes, spell_seconds
from gateway.operator.view import TOKENS

BARS = " ▁▂▃▄▅▆▇█"
GOOD, BAD, SOFT = "green", "bold red", "dim"
HEAD_LINES, SECTION_LINES = 3, 4
"""Lines of the frame besides its rows: head, rates and foot, and each table's own."""
FEWEST_REQUESTS = 3
ID_CHARACTERS = 12
"""The last of a request's id; all of it is what filters look at."""
FAILED = ("failed", "refused")
ROLES = {"P": 0, "RLD": 1, "MD": 2}


def draw_frame(state: WatchedState, controls: Controls, url: str, now_s: float, height: int) -> RenderableType:
    """Return the frame. ``now_s`` is the wall clock, ``height`` how many lines there are."""
    instances, links = state.section("instances"), state.section("links")
    head = _head(state, url)
    taken = HEAD_LINES + head.plain.count("\n") + 3 * SECTION_LINES + len(instances) + len(links)
    return Group(
        head,
        _rates(state),
        _instances(instances),
        _links(links, state),
        _requests(state, controls, now_s, max(FEWEST_REQUESTS, height - taken)),
        _foot(controls),
    )


def _head(state: WatchedState, url: str) -> Text:
    gateway = state.section("gateway").get("self", {})
    line = Text.assemble((f"pdd top  {url}", "bold"), f"  {gateway.get('version', '')}")
    count = gateway.get("gateways", 1)
    line.append(f"  {count} gateway{'s' if count != 1 else ''}")
    line.append("  Redis up" if gateway.get("redis_up") else "  Redis away", "" if gateway.get("redis_up") else BAD)
    if waiting := gateway.get("waiting"):
        line.append(f"  {waiting} wait for a place")
    missing = gateway.get("missing", ())
    line.append("  not ready" if missing else "  ready", BAD if missing else GOOD)
    if gateway.get("draining"):
        line.append("  ends soon (draining)", BAD)
    for one in (*missing, *gateway.get("degraded", ()), *gateway.get("refusals", ())):
        line.append(f"\n  ! {plain(one)}", BAD)
    if state.lost is not None:
        line.append(f"\n  ! not of now: {state.lost}; asking again", BAD)
    return line


def _rates(state: WatchedState) -> Text:
    if not state.points:
        return Text("no rates yet: they begin with the second second", SOFT)
    last = state.points[-1]
    line = Text(f"{last['requests']:.1f} requests/s   tokens/s: ")
    for name in TOKENS:
        role = name.partition(":")[2]
        line.append(f"{role} {last[name]:.1f}  ", ROLE_STYLES.get(role, ""))
    judged = last["slo_met"] + last["slo_missed"]
    line.append(f" SLO met {last['slo_met'] / judged:.0%}  " if judged else "")
    line.append(f" last minute {_spark([sum(point[name] for name in TOKENS) for point in state.points])}", SOFT)
    return line


def _spark(values: list[float]) -> str:
    top = max(values) or 1.0
    return "".join(BARS[round(value / top * (len(BARS) - 1))] for value in values)


def _table(title: str, columns: tuple[str, ...], right: tuple[str, ...], shrinks: tuple[str, ...]) -> Table:
    table = Table(
        title=f"\n{title}", title_justify="left", title_style="bold", box=SIMPLE_HEAD, show_edge=False, pad_edge=False
    )
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=name not in shrinks)
    return table


def _shrinking(text: str, style: str = "") -> Text:
    """Return a cell that gives way where the terminal is narrow, on its one line."""
    return Text(plain(text), style, no_wrap=True, overflow="ellipsis")


def _instances(instances: Mapping[str, Any]) -> Table:
    figures = ("load", "full", "KV", "hits", "ITL")
    table = _table("Instances", ("id", "role", "region", "model", "state", *figures, "why"), figures, ("model", "why"))
    for id_, one in sorted(
        instances.items(), key=lambda pair: (pair[1]["region"], ROLES.get(pair[1]["role"], 3), pair[0])
    ):
        running = max(one["running"], one["legs"])
        word, style = ("draining", "yellow") if one["draining"] else ("up", GOOD) if one["up"] else ("out", BAD)
        notes = [one["why"], one["differs"] and "computes unlike others", one["leaks_salts"] and "mixes cache salts"]
        table.add_row(
            id_,
            Text(one["role"], ROLE_STYLES.get(one["role"], "")),
            one["region"],
            _shrinking(one["model"]),
            Text(word, style),
            f"{running}+{one['waiting']}/{one['max_running']}",
            f"{(running + one['waiting']) / one['max_running']:.0%}",
            f"{one['kv_usage']:.0%}",
            "-" if one["hit_rate"] is None else f"{one['hit_rate']:.0%}",
            "-" if one["itl_ms"] is None else f"{one['itl_ms']:.1f} ms",
            _shrinking("; ".join(note for note in notes if note and note != word), SOFT),
        )
    return table


def _links(links: Mapping[str, Any], state: WatchedState) -> Table:
    last = state.points[-1] if state.points else {}
    figures = ("rate", "now", "on order", "open", "RTT", "prompt")
    table = _table("Lines between regions", ("line", "state", *figures, "KV unread"), figures, ("KV unread",))
    for id_, one in sorted(links.items()):
        typical = "-" if one["typical_s"] is None else f"{one['typical_tokens']} in {spell_seconds(one['typical_s'])}"
        table.add_row(
            f"{one['source']} -> {one['dest']}",
            Text("up", GOOD) if one["up"] else Text("down", BAD),
            f"{spell_bytes(one['rate_bytes_per_s'])}/s",
            f"{spell_bytes(last.get(f'wan:{id_}', 0.0))}/s",
            spell_bytes(one["queued_bytes"]),
            "-" if one["open"] is None else str(one["open"]),
            f"{one['rtt_ms']:.1f} ms",
            typical,
            _shrinking(", ".join(one["lost"]), BAD),
        )
    return table


def _requests(state: WatchedState, controls: Controls, now_s: float, most: int) -> Table:
    requests = state.section("requests")
    chosen = controls.choose(requests)
    running = sum(one["running"] for _, one in chosen)
    title = f"Requests: {running} running, {len(chosen) - running} recent, by {controls.sort}"
    if controls.filter:
        title += f", of {len(requests)} those with '{plain(controls.filter)}'"
    figures = ("P / RLD / MD", "TTFT", "gap", "WAN")
    columns = ("age", "request", "tenant", "model", "plan", "state", *figures)
    table = _table(title, columns, ("age", *figures), ("tenant", "model", "plan"))
    for id_, one in chosen[:most]:
        style = "bold" if one["running"] else BAD if one["outcome"] in FAILED else ""
        table.add_row(
            spell_age(now_s - one["at_s"]),
            plain(id_[-ID_CHARACTERS:]),
            _shrinking(one["tenant"] or "-"),
            _shrinking(one["model"]),
            _shrinking(f"{one['plan'] or '-'}{f' ({reason})' if (reason := one['reason']) else ''}"),
            Text((one["phase"] if one["running"] else one["outcome"]) or "-", style),
            _spell_tokens(one["tokens"]),
            spell_seconds(one["ttft_s"]),
            spell_seconds(one["gap_s"]),
            spell_bytes(one["wan_bytes"]) if one["wan_bytes"] else "-",
        )
    return table


def _spell_tokens(tokens: Mapping[str, int] | None) -> Text:
    if not tokens:
        return Text("-")
    pieces: list[tuple[str, str]] = []
    for role in ROLES:
        pieces += [(" / ", ""), (str(tokens.get(role, 0)), ROLE_STYLES[role])]
    return Text.assemble(*pieces[1:])


def spell_age(seconds: float) -> str:
    """Write how long ago something began."""
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"


def _foot(controls: Controls) -> Text:
    if controls.typing:
        return Text(f"requests with: {plain(controls.filter)}_   Enter keeps it, Escape takes it away", "reverse")
    return Text("q ends   s sorts requests   / filters them", SOFT)
