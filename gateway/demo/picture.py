"""``python -m gateway.demo.picture``: draws one recorded answer, who made its tokens and when, as ``relay.svg``.

With ``--record URL`` it first asks a gateway that ``pdd demo`` serves for a long answer, and keeps that one's course in
``relay.json``. A recording holds times, roles and counts; no text.
"""

import argparse
import json
import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from backends.engines.reference.demo_model.prompts import long_prompt

RECORDING = Path(__file__).with_name("relay.json")
PICTURE = Path(__file__).with_name("relay.svg")

LIGHT = {"page": "#ffffff", "text": "#1f2328", "muted": "#59636e", "line": "#d1d9e0"}
DARK = {"page": "#0d1117", "text": "#f0f6fc", "muted": "#9198a1", "line": "#3d444d"}
LIGHT |= {"P": "#8250df", "RLD": "#9a6700", "KV": "#59636e", "MD": "#0969da"}
DARK |= {"P": "#ab7df8", "RLD": "#d29922", "KV": "#9198a1", "MD": "#4493f8"}
"""The picture brings its own page, as a reader's page need not be of the colour scheme that the reader's system has."""

WIDTH, LEFT, RIGHT = 960, 190, 28
TOP, ROW, BAR = 74, 46, 22
LANES = (
    ("client", "what the client gets"),
    ("P", "prefill, region A"),
    ("RLD", "relay decode, region A"),
    ("KV", "over the WAN, A to B"),
    ("extend", "MD catches up, in rounds"),
    ("MD", "main decode, region B"),
)


@dataclass(frozen=True, slots=True)
class Recording:
    """One answer. ``tokens``: for each role, when its tokens reached the client, in seconds since the request was sent.

    ``events``: the request's timeline, which the gateway counts from a little later on.
    """

    tokens: Mapping[str, Sequence[float]]
    events: Sequence[Mapping[str, Any]]

    @property
    def end_s(self) -> float:
        """When the last token came."""
        return max(times[-1] for times in self.tokens.values())

    @property
    def offset_s(self) -> float:
        """From the request's sending to the timeline's zero."""
        return self.tokens["P"][0] - next(float(e["t_s"]) for e in self.events if e["event"] == "first_token")

    def time_of(self, event: str) -> float:
        """When something happened for the first time."""
        return self.offset_s + next(float(e["t_s"]) for e in self.events if e["event"] == event)

    def legs(self, kind: str) -> list[tuple[float, float]]:
        """When the legs of a kind began and ended."""
        began = {e["leg"]: e["t_s"] for e in self.events if e["event"] == "leg_started" and e["kind"] == kind}
        ended = {e["leg"]: e["t_s"] for e in self.events if e["event"] == "leg_ended"}
        return [(self.offset_s + start_s, self.offset_s + ended[leg]) for leg, start_s in began.items()]


def draw(recording: Recording) -> str:
    span_s = recording.end_s
    scale = (WIDTH - LEFT - RIGHT) / span_s
    bottom = TOP + ROW * len(LANES)
    parts = [*_frame(bottom), *_axis(span_s, scale, bottom)]
    for number, (lane, caption) in enumerate(LANES):
        parts += _label(lane, caption, TOP + ROW * number)
    parts += _bars(recording, scale)
    parts += _ticks(recording, scale)
    parts += _counts(recording, scale)
    parts += _marks(recording, scale, bottom)
    return "\n".join((*parts, "</svg>", ""))


def _frame(bottom: int) -> list[str]:
    height = bottom + 40
    told = "One answer on one time axis: P's token, RLD's tokens while the KV crosses the WAN, the joint, MD's tokens"
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{told}">',
        f"<style>{_style(LIGHT)} @media (prefers-color-scheme: dark) {{ {_style(DARK)} }}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>',
    ]


def _style(colours: dict[str, str]) -> str:
    text, page, line = (colours[name] for name in ("text", "page", "line"))
    fills = [f".{name} {{ fill: {colours[name]} }}" for name in ("page", "muted", "P", "RLD", "KV", "MD")]
    return " ".join(
        (
            f"text {{ font: 13px sans-serif; fill: {text} }} .name {{ font-weight: bold }}",
            *fills,
            f".on {{ fill: {page} }} .line {{ stroke: {line} }}",
        )
    )


def _axis(span_s: float, scale: float, bottom: int) -> Iterable[str]:
    for second in range(int(span_s) + 1):
        x = LEFT + second * scale
        yield f'<line class="line" x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{bottom}"/>'
        yield f'<text class="muted" x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">{second} s</text>'


def _label(lane: str, caption: str, top: int) -> list[str]:
    return [
        f'<text x="16" y="{top + 10}" class="name">{lane}</text>',
        f'<text class="muted" x="16" y="{top + 26}">{escape(caption)}</text>',
    ]


def _bars(recording: Recording, scale: float) -> Iterable[str]:
    crossing = (recording.time_of("transfer_started"), recording.time_of("transfer_complete"))
    rows = {
        "P": ("P", recording.legs("prefill")),
        "RLD": ("RLD", recording.legs("relay")),
        "KV": ("KV", [crossing]),
        "extend": ("MD", recording.legs("extend")),
        "MD": ("MD", recording.legs("final")),
    }
    for lane, (role, spans) in rows.items():
        for start_s, end_s in spans:
            width = max(2.0, (end_s - start_s) * scale - 1.5)
            yield (
                f'<rect class="{role}" fill-opacity="0.35" x="{LEFT + start_s * scale:.1f}" y="{_top(lane)}" '
                f'width="{width:.1f}" height="{BAR}"/>'
            )


def _ticks(recording: Recording, scale: float) -> Iterable[str]:
    """One path for each role and lane; tokens that share a pixel share a tick."""
    for role in ("P", "RLD", "MD"):
        places = sorted({round(LEFT + at_s * scale) for at_s in recording.tokens[role]})
        for lane in ("client", role):
            path = "".join(f"M{x} {_top(lane)}v{BAR}h1v-{BAR}z" for x in places)
            yield f'<path class="{role}" d="{path}"/>'


def _counts(recording: Recording, scale: float) -> Iterable[str]:
    """What each bar amounts to, written on it."""
    told = {role: f"{len(recording.tokens[role]):,} tokens" for role in ("RLD", "MD")}
    wan_bytes = next(e["wan_bytes"] for e in recording.events if e["event"] == "transfer_complete")
    told["KV"] = f"{wan_bytes / 1e6:.0f} MB"
    begins = {role: recording.tokens[role][0] for role in ("RLD", "MD")} | {"KV": recording.time_of("transfer_started")}
    for lane, text in told.items():
        kind = "" if lane == "KV" else ' class="on"'
        yield f'<text{kind} x="{LEFT + begins[lane] * scale + 8:.1f}" y="{_top(lane) + 15}">{text}</text>'


def _marks(recording: Recording, scale: float, bottom: int) -> Iterable[str]:
    first_s, joint_s = recording.tokens["P"][0], recording.tokens["MD"][0]
    gap_s = joint_s - recording.tokens["RLD"][-1]
    ready_s = recording.time_of("transfer_complete")
    moments = (
        (first_s, 48, f"{first_s:.1f} s: the first token, P's"),
        (ready_s, 48, f"{ready_s:.1f} s: the KV is in region B"),
        (joint_s, 24, f"joint: MD goes on, {gap_s * 1000:.0f} ms after RLD's last token"),
    )
    for at_s, y, told in moments:
        x = LEFT + at_s * scale
        anchor = "end" if x > WIDTH * 0.6 else "start"
        yield f'<line class="line" x1="{x:.1f}" y1="{y + 5}" x2="{x:.1f}" y2="{bottom}" stroke-dasharray="3 3"/>'
        yield f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}">{told}</text>'


def _top(lane: str) -> int:
    return TOP + ROW * [name for name, _ in LANES].index(lane)


def read_recording(path: Path = RECORDING) -> Recording:
    document = json.loads(path.read_text(encoding="utf-8"))
    return Recording(document["tokens"], document["events"])


def record(base_url: str, words: int, tokens: int, seed: int) -> Recording:
    """Ask as any client would, with the trace on, and add what the gateway notes of the request."""
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": long_prompt(seed, words)}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    headers = {"content-type": "application/json", "x-pdd-trace": "1"}
    request = urllib.request.Request(f"{base_url}/v1/chat/completions", json.dumps(body).encode(), headers)
    came: dict[str, list[float]] = {}
    sent_s = time.perf_counter()
    with urllib.request.urlopen(request, timeout=300) as answer:
        name = answer.headers["x-request-id"]
        for line in answer:
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                for _ in (id_ for choice in chunk["choices"] for id_ in choice.get("token_ids") or ()):
                    came.setdefault(chunk["pdd"]["role"], []).append(round(time.perf_counter() - sent_s, 3))
    with urllib.request.urlopen(f"{base_url}/admin/requests/{name}", timeout=30) as answer:
        return Recording(came, json.load(answer)["events"])


def write_recording(recording: Recording, path: Path = RECORDING) -> None:
    """One event a line, so that a new recording can be read as a change."""
    tokens = ",\n".join(f"  {json.dumps(role)}: {json.dumps(times)}" for role, times in recording.tokens.items())
    events = ",\n".join(f"  {json.dumps(event)}" for event in recording.events)
    path.write_text(f'{{"tokens": {{\n{tokens}\n}},\n"events": [\n{events}\n]}}\n', encoding="utf-8")


def main() -> None:
    """Record if asked to, then draw."""
    parser = argparse.ArgumentParser(description="draw relay.svg from relay.json")
    parser.add_argument("--record", metavar="URL", help="first record an answer of the demo's gateway at this address")
    parser.add_argument("--words", type=int, default=4000, help="words in the prompt")
    parser.add_argument("--tokens", type=int, default=700, help="tokens in the answer")
    parser.add_argument("--seed", type=int, default=5, help="another one is a prompt that no cache holds yet")
    args = parser.parse_args()
    if args.record:
        write_recording(record(args.record, args.words, args.tokens, args.seed))
    PICTURE.write_text(draw(read_recording()), encoding="utf-8")


if __name__ == "__main__":
    main()
