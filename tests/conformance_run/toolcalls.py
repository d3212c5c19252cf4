"""How our parsers read what models wrote: all fixtures of canitoolcall, judged by its own checks.

Each is read whole, in one piece, by single units, cut around control tokens and in random groups. canitoolcall cuts
between tokens; here a unit is a character, which is more cuts, or a control token of the model's.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from canitoolcall import checks, fixtures, results

from gateway.text.parsers.cursor import CONTROL
from gateway.text.parsers.reader import MessageReader
from gateway.text.parsers.registry import Parsers, find_parsers

PARSERS: Mapping[str, Sequence[tuple[str, str | None, str | None]]] = {
    "qwen3-hermes": (
        ("Instruct-2507", "hermes", None),
        ("Thinking-2507", "hermes", "deepseek_r1"),
        ("Qwen3", "hermes", "qwen3"),
    ),
    "qwen3-xml": (("Qwen3-Coder", "qwen3_coder", None), ("Qwen3.", "qwen3_coder", "qwen3")),
    "gpt-oss": (("gpt-oss", "openai", "openai_gptoss"),),
    "deepseek": (
        ("V4.1", "deepseek_v41", "deepseek_v41"),
        ("V4", "deepseek_v4", "deepseek_v4"),
        ("V3.2", "deepseek_v32", "deepseek_v3"),
        ("V3.1", "deepseek_v31", "deepseek_v3"),
        ("R1", "deepseek_v3", "deepseek_r1"),
        ("V3", "deepseek_v3", None),
    ),
    "kimi": (("K3", "kimi_k3", "kimi_k3"), ("K2-Instruct", "kimi_k2", None), ("K2", "kimi_k2", "kimi_k2")),
    "glm": (("GLM-4.5", "glm45", "glm45"), ("GLM-", "glm47", "glm47")),
    "llama": (("Llama-4", "llama4_pythonic", None), ("Llama-3", "llama3_json", None)),
    "mistral": (
        ("Magistral", "mistral", "mistral"),
        ("Reasoning", "mistral", "mistral"),
        ("Medium-3.5", "mistral", "mistral"),
        ("Small-4", "mistral", "mistral"),
        ("", "mistral", None),
    ),
    "gemma4": (("gemma-4", "gemma4", "gemma4"),),
}
"""By family the parsers of models whose name holds a text, the first that fits; as model cards name them for vLLM."""

MISTRAL_V3 = {5: "[TOOL_CALLS]"}
MISTRAL = {9: "[TOOL_CALLS]", 32: "[ARGS]", 33: "[CALL_ID]", 34: "[THINK]", 35: "[/THINK]"}
CONTROL_IDS: Mapping[str, Mapping[int, str]] = {
    "gpt-oss": {
        200002: "<|return|>",
        200003: "<|constrain|>",
        200005: "<|channel|>",
        200006: "<|start|>",
        200007: "<|end|>",
        200008: "<|message|>",
        200012: "<|call|>",
    },
    "K3": {163587: "<|open|>", 163588: "<|close|>", 163589: "<|sep|>"},
    "Mistral-7B": MISTRAL_V3,
    "istral": MISTRAL,
    "Devstral": MISTRAL,
}
"""Where letters and tokens are told apart, the control tokens by a part of the model's name."""

GROUPED = 8


class Judged(NamedTuple):
    """What came of one fixture. ``reason``: why it does not pass."""

    fixture: str
    family: str
    status: str
    reason: str | None
    stream_differs: bool


def run() -> Mapping[str, object]:
    """Judge all fixtures, print those that do not pass, and return the counts."""
    statuses: dict[str, Counter[str]] = {}
    for one in judge():
        counts = statuses.setdefault(one.family, Counter())
        counts[one.status] += 1
        counts["stream_differs"] += one.stream_differs
        if one.status != "pass":
            print(f"   {one.status}: {one.fixture}: {one.reason}")
    figures: dict[str, object] = {}
    for slug, counts in sorted(statuses.items()):
        figures |= {
            f"toolcalls.{slug}.pass": counts["pass"],
            f"toolcalls.{slug}.soft": counts["soft_pass"],
            f"toolcalls.{slug}.fail": counts["fail"] + counts["error"],
            f"toolcalls.{slug}.stream_differs": counts["stream_differs"],
        }
    return figures


def judge() -> Iterator[Judged]:
    """Read all fixtures, and have canitoolcall check what comes out."""
    families = fixtures.load_families()
    for fixture in fixtures.load_fixtures():
        family = families[fixture.family]
        seen = observe(fixture, family)
        rows = checks.run_checks(fixture, family, seen)
        status = checks.case_status(rows, seen.synthetic).value
        reason = next((row.detail for row in rows if row.status.value == status), None)
        differs = any(stream != seen.nonstream for stream in seen.streams.values())
        yield Judged(fixture.id, fixture.family, status, reason, differs)


def observe(fixture: fixtures.Fixture, family: fixtures.Family) -> results.Observation:
    """Return what our parsers make of a fixture, whole and in pieces."""
    parsers, text = find_reading(fixture)
    opening = fixture.generation_prompt
    if opening is None:
        models = {model.repo: model.default_generation_prompt for model in family.reference_models}
        opening = models.get(fixture.reference_model) or ""
    units = split_units(text, parsers)

    def read(pieces: Sequence[str]) -> results.ParseResult:
        tools = [dict(tool) for tool in fixture.tools]
        return read_pieces(parsers.make_reader(opening or "", tools), pieces)

    streams = {name: read(pieces) for name, pieces in cut_units(units)}
    return results.Observation(read([text]), streams)


def find_reading(fixture: fixtures.Fixture) -> tuple[Parsers, str]:
    """Return a fixture's parsers, and its text with its control tokens marked."""
    name = fixture.reference_model
    tool, reasoning = next((tool, think) for part, tool, think in PARSERS[fixture.family] if part in name)
    controls = next((ids for part, ids in CONTROL_IDS.items() if part in name), {})
    parsers = find_parsers(tool, reasoning, set(controls.values()))
    return parsers, mark_controls(fixture.raw_output, fixture.output_token_ids or (), controls)


def mark_controls(text: str, ids: Sequence[int], controls: Mapping[int, str]) -> str:
    """Return the text with CONTROL before what the ids say are tokens, and not letters that look alike."""
    found: list[tuple[int, str]] = []
    ordinary = 0
    for token_id in ids:
        if token_id in controls:
            found.append((ordinary, controls[token_id]))
            ordinary = 0
        else:
            ordinary += 1
    places = next(place_controls(text, 0, found, ordinary), [])
    assert len(places) == len(found), text
    for at in reversed(places):
        text = text[:at] + CONTROL + text[at:]
    return text


def place_controls(text: str, at: int, found: Sequence[tuple[int, str]], last: int) -> Iterator[list[int]]:
    """Give the places of the tokens that agree with how many ordinary tokens are between them."""
    if not found:
        if fits(text[at:], last):
            yield []
        return
    ordinary, token = found[0]
    place = text.find(token, at)
    while place >= 0:
        if fits(text[at:place], ordinary):
            for places in place_controls(text, place + len(token), found[1:], last):
                yield [place, *places]
        place = text.find(token, place + 1)


def fits(text: str, tokens: int) -> bool:
    """Say whether a text can be so many tokens."""
    return bool(text) == bool(tokens) and tokens <= len(text.encode())


def split_units(text: str, parsers: Parsers) -> list[str]:
    """Return the text's characters, and its control tokens as they are."""
    units: list[str] = []
    at = 0
    while at < len(text):
        unit = next(
            (shown for shown in parsers.shown.values() if shown[0] == CONTROL and text.startswith(shown, at)), ""
        )
        units.append(unit or text[at])
        at += len(units[-1])
    return units


def cut_units(units: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Give the units in groups, by the names of canitoolcall's ways to cut."""
    yield "one", ["".join(units)]
    yield "token", list(units)
    pieces = [""]
    for unit in units:
        if len(unit) > 1:
            pieces += [unit, ""]
        else:
            pieces[-1] += unit
    yield "special", pieces
    for seed in range(1, 6):
        dice, rest, pieces = random.Random(seed), list(units), []
        while rest:
            size = dice.randint(1, GROUPED)
            pieces.append("".join(rest[:size]))
            rest = rest[size:]
        yield f"rand:{seed}:{GROUPED}", pieces


def read_pieces(reader: MessageReader | None, pieces: Sequence[str]) -> results.ParseResult:
    """Return what comes of the pieces, as a client puts it together."""
    gathered = results.StreamAccumulator()
    if reader is None:
        gathered.add_content("".join(pieces))
        return gathered.result()
    for part in (*map(reader.push, pieces), reader.flush()):
        gathered.add_content(part.content)
        gathered.add_reasoning(part.reasoning)
        for call in part.calls:
            gathered.add_tool_call(call.index, call.name, call.arguments)
    return gathered.result()
