"""The whole way from three engines to the client's text: split or not, the bytes are the same."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.relay.types import Finish
from gateway.text.detokenise import OutputText, TextOptions
from gateway.text.model import ServedModel, load_model
from tests.fakes.gates import HoldGate
from tests.fakes.kv_path import FakeKvPath
from tests.fakes.script import EOS, Script, fixed_answer
from tests.gateway.model_dir import make_model_dir
from tests.gateway.relay.stage import PROMPT, AnswerEvent, Collector, open_stage

TEXT = "Příliš 👩‍👩‍👧 žluťoučký kůň; 世界 says: ďábelské 😀😀 naïve… ไทย end"
CHUNKS = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    """A byte-level model, in which most characters of TEXT are several tokens."""
    directory: Path = make_model_dir(tmp_path_factory.mktemp("split"))
    return load_model("demo", directory)


def make_text(model: ServedModel, ids: list[int], options: TextOptions) -> str:
    """What the ids are as text when they come at once."""
    output = OutputText(model.vocabulary, options)
    piece = output.push(ids)
    return piece.text + output.finish(terminator=not piece.stopped)


@pytest.mark.timeout(240)
@settings(max_examples=40, deadline=None)
@given(
    cut=st.integers(1, 60),
    relay_chunks=CHUNKS,
    main_chunks=CHUNKS,
    mode=st.sampled_from(["one_shot", "catch_up"]),
    stop=st.none() | st.tuples(st.integers(0, len(TEXT) - 2), st.integers(1, 8)),
)
def test_split_text_is_the_unsplit_text(
    model: ServedModel,
    cut: int,
    relay_chunks: tuple[int, ...],
    main_chunks: tuple[int, ...],
    mode: str,
    stop: tuple[int, int] | None,
) -> None:
    """Wherever the joint cuts, within a character or a stop string too, the client's text is that of one engine."""
    ids = model.encoder.encode_now(TEXT)
    stops = () if stop is None else (TEXT[stop[0] : stop[0] + stop[1]],)
    options = TextOptions(stop=stops, terminators=frozenset({EOS}))
    text, by_main = asyncio.run(_run(model, ids, options, min(cut, len(ids)), relay_chunks, main_chunks, mode))
    assert text == make_text(model, [*ids, EOS], options)
    assert by_main or stops or cut >= len(ids)
    if not stops:
        assert text == TEXT and "\ufffd" not in text


async def _run(
    model: ServedModel,
    ids: list[int],
    options: TextOptions,
    cut: int,
    relay_chunks: tuple[int, ...],
    main_chunks: tuple[int, ...],
    mode: str,
) -> tuple[str, bool]:
    """Let RLD stop after ``cut`` ids until MD has taken over; the client's text, and whether MD spoke."""
    rules: dict[str, Any] = {"handoff": {"mode": mode, "threshold_tokens": 1}}
    async with open_stage(rules, ids=("p1", "rld1", "md1")) as stage:
        for engine in stage.engines.values():
            engine.model = fixed_answer(len(PROMPT), ids)
        gate = HoldGate()
        stage.engines["rld1"].scripts.append(Script(chunks=relay_chunks, holds={cut: gate}))
        stage.engines["md1"].script = Script(chunks=main_chunks)
        answer = stage.ask(max_tokens=len(ids) + 10)
        output = OutputText(model.vocabulary, options)
        text, by_main = "", False

        def note(event: AnswerEvent) -> None:
            nonlocal text, by_main
            if isinstance(event, Finish):
                text += output.finish(event.terminator)
            elif not output.stopped:
                by_main = by_main or event.role == "MD"
                piece = output.push(event.ids)
                text += piece.text
                if piece.stopped:
                    answer.stop_at(output.tokens)

        arrival = asyncio.create_task(_complete(gate, stage.path))
        try:
            await answer.run(Collector(note))
        finally:
            arrival.cancel()
            await asyncio.gather(arrival, return_exceptions=True)
            await answer.aclose()
        return text, by_main


async def _complete(gate: HoldGate, path: FakeKvPath) -> None:
    await gate.arrivals()
    (await path.opened()).complete()
