"""The exact ids of earlier turns: when the next prompt begins with them, and when it does not."""

import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.detokenise import OutputText, TextOptions
from gateway.text.model import ServedModel, load_model
from gateway.text.parsers.output import CallDelta, Parts
from gateway.text.turns import KeptTurn, ModelWords, OngoingTurn, Said, TurnMemory, say
from tests.gateway.api.talk import TEMPLATE, TOOLS
from tests.gateway.model_dir import make_model_dir

USER: dict[str, Any] = {"role": "user", "content": "Where is the quick brown fox?"}
CALLED: dict[str, Any] = {
    "role": "assistant",
    "reasoning": "The dog does not mind.",
    "tool_calls": [{"type": "function", "function": {"name": "find", "arguments": '{"key": [1, 2, 3]}'}}],
}
SPELLED = '{"name":"find","arguments":{"key":[1,2,3]}}'
WRITTEN = f"<think>\nThe dog does not mind.\n</think>\n\n<tool_call>\n{SPELLED}\n</tool_call>"
RESULT: dict[str, Any] = {"role": "tool", "content": "Over the lazy dog."}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    directory = make_model_dir(tmp_path_factory.mktemp("turns"))
    (directory / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    model = load_model("m", directory)
    yield model
    model.close()


@dataclass
class Talk:
    """Asks of one model with one memory; ``notes``: what came of each chat that goes on."""

    model: ServedModel
    memory: TurnMemory = field(default_factory=TurnMemory)
    notes: list[str] = field(default_factory=list)

    def turn(self, messages: Sequence[dict[str, Any]], scope: Sequence[str | None] = ("t", None, "m")) -> OngoingTurn:
        words = ModelWords(self.model.encoder.encode_now, self.read, self.model.end_texts)
        return OngoingTurn(self.memory, scope, messages, words, self.notes.append)

    def read(self, prompt: Sequence[int], answer: Sequence[int]) -> Said:
        reader = self.model.parsers.make_reader("", TOOLS)
        assert reader is not None
        output = OutputText(self.model.vocabulary, TextOptions())
        text = output.push(answer).text + output.finish(terminator=False)
        return say([reader.push(text), reader.flush()])

    def render(self, messages: Sequence[dict[str, Any]]) -> str:
        assert self.model.template is not None
        return self.model.template.render(messages)

    def plain(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """What an engine makes of the messages."""
        return self.model.encoder.encode_now(self.render(messages))

    def prompt(self, messages: Sequence[dict[str, Any]], **scope: Any) -> tuple[list[int], OngoingTurn]:
        turn = self.turn(messages, **scope)
        text = self.render(messages)
        known = turn.begin(text)
        prompt = (
            self.plain(messages) if known is None else [*known[0], *self.model.encoder.encode_now(text[known[1] :])]
        )
        turn.made(prompt)
        return prompt, turn

    def letters(self, text: str) -> list[int]:
        """Ids of a text as no tokeniser would write it: one for each letter."""
        return [id_ for letter in text for id_ in self.model.encoder.encode_now(letter)]

    def answered(self, messages: Sequence[dict[str, Any]], text: str) -> list[int]:
        """Answer in odd ids; return all that the engine then knows, without the end."""
        prompt, turn = self.prompt(messages)
        answer = self.letters(text)
        turn.keep([*answer, self.end])
        return [*prompt, *answer]

    @property
    def end(self) -> int:
        end = self.model.tokenizer.token_to_id("<|im_end|>")
        assert end is not None
        return end


@pytest.fixture
def talk(model: ServedModel) -> Talk:
    return Talk(model)


def test_the_next_prompt_begins_with_the_ids_that_were_written(talk: Talk) -> None:
    """A call and thoughts that are sent back go on from the very ids, however the template spells the call."""
    known = talk.answered([USER], WRITTEN)
    messages = [USER, CALLED, RESULT]

    prompt, _ = talk.prompt(messages)

    assert prompt[: len(known)] == known
    assert prompt[len(known) :] == talk.plain(messages)[-(len(prompt) - len(known)) :]
    assert talk.plain(messages)[: len(known)] != known
    assert talk.notes == ["kept"]


def test_turns_go_on_from_turns(talk: Talk) -> None:
    """A prompt that began with kept ids is kept itself, with all of them."""
    messages = [USER]
    for number in range(3):
        known = talk.answered(messages, WRITTEN)
        messages = [*messages, CALLED, RESULT | {"content": f"Result {number}"}]
        assert talk.prompt(messages)[0][: len(known)] == known
    assert talk.notes.count("kept") == len(talk.notes)


def test_what_the_template_leaves_out_is_left_out(talk: Talk) -> None:
    """After a new question old thoughts are not shown: the prompt is the engine's."""
    talk.answered([USER], WRITTEN)
    messages = [USER, CALLED, RESULT, {"role": "assistant", "content": "Hello world!"}, USER]

    assert talk.prompt(messages)[0] == talk.plain(messages)
    assert talk.notes == ["differs"]


@pytest.mark.parametrize(
    "change",
    [
        {"reasoning": None},
        {"reasoning": "The dog does mind."},
        {"content": "Hello"},
        {"tool_calls": [{"type": "function", "function": {"name": "find", "arguments": '{"key": [1, 2]}'}}]},
        {"tool_calls": [*CALLED["tool_calls"], *CALLED["tool_calls"]]},
    ],
    ids=["no thoughts", "other thoughts", "other content", "other arguments", "one more call"],
)
def test_an_answer_that_was_changed_is_read_anew(talk: Talk, change: dict[str, Any]) -> None:
    """What the client sends back counts, and not what the model had said."""
    talk.answered([USER], WRITTEN)
    messages = [USER, CALLED | change, RESULT]

    assert talk.prompt(messages)[0] == talk.plain(messages)
    assert talk.notes == ["differs"]


def test_another_beginning_is_another_conversation(talk: Talk) -> None:
    """Neither another first message nor another tenant gets a conversation's ids."""
    talk.answered([USER], WRITTEN)
    other = [USER | {"content": "Where is the dog?"}, CALLED, RESULT]

    assert talk.prompt(other)[0] == talk.plain(other)
    assert talk.prompt([USER, CALLED, RESULT], scope=("other", None, "m"))[0] == talk.plain([USER, CALLED, RESULT])
    assert talk.prompt([USER, CALLED, RESULT], scope=("t", "salt", "m"))[0] == talk.plain([USER, CALLED, RESULT])
    assert talk.notes == ["unknown"] * 3


def test_an_answer_that_was_taken_back_leaves_the_earlier_ones(talk: Talk) -> None:
    """Where the last answer is another, the ids up to the one before count."""
    known = talk.answered([USER], WRITTEN)
    messages = [USER, CALLED, RESULT]
    talk.answered(messages, "Hello world!")

    prompt, _ = talk.prompt([*messages, CALLED | {"reasoning": "Hello there."}, RESULT])

    assert prompt[: len(known)] == known
    assert talk.notes == ["kept", "kept"]


def test_an_answer_that_ended_otherwise_is_not_kept(talk: Talk) -> None:
    """Neither one that was cut, nor one with an end in its middle."""
    for ids in ([5, 6, 7], [5, talk.end, 6, talk.end]):
        _, turn = talk.prompt([USER])
        turn.keep(ids)
    assert talk.memory.used_bytes == 0


def test_an_end_that_is_only_quoted_ends_nothing(talk: Talk) -> None:
    """An answer that spells the end's letters is not taken for a shorter one."""
    said = "It is <|im_end|> here"
    talk.answered([USER], said)
    messages = [USER, {"role": "assistant", "content": said}, USER]

    assert talk.prompt(messages)[0] == talk.plain(messages)


def test_memory_is_bounded() -> None:
    """The turn that was not used for longest goes first; one that is too large is not kept."""
    ids = array("I", range(100))
    turn = KeptTurn(ids, ids, 1, b"", "")
    memory = TurnMemory(limit_bytes=2 * turn.size_bytes)
    for key in (b"a", b"b", b"b"):
        memory.put(key, turn)
    assert memory.get(b"a") is turn
    memory.put(b"c", turn)
    memory.put(b"d", KeptTurn(array("I", range(1000)), ids, 1, b"", ""))

    assert [key for key in (b"a", b"b", b"c", b"d") if memory.get(key)] == [b"a", b"c"]
    assert memory.used_bytes == 2 * turn.size_bytes


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5) | st.booleans(), max_size=5), st.data())
def test_spelling_says_nothing(value: dict[str, Any], data: st.DataObject) -> None:
    """Calls say the same whatever the order and the blanks of their arguments."""
    shuffled = dict(data.draw(st.permutations(list(value.items()))))
    spellings = (json.dumps(value), json.dumps(shuffled, indent=1, ensure_ascii=False))
    said = {say([Parts(" x\n", calls=(CallDelta(0, text, "id", "f"),))]) for text in spellings}

    assert len(said) == 1


def test_ends_that_take_blanks_with_them_are_none(tmp_path: Path) -> None:
    """A tokeniser whose texts cannot be cut before the end has no turns to keep."""
    directory = make_model_dir(tmp_path)
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    for token in tokenizer["added_tokens"]:
        token["rstrip"] = True
    path.write_text(json.dumps(tokenizer))
    model = load_model("m", directory)
    model.close()

    assert model.end_texts == {}


class Others:
    """What other processes know. ``told``: what they were told."""

    def __init__(self, known: dict[bytes, KeptTurn] | None = None) -> None:
        self.known = known or {}
        self.told: dict[bytes, KeptTurn] = {}
        self.asked = 0

    async def find(self, key: bytes) -> KeptTurn | None:
        """See ``SharedTurns``."""
        self.asked += 1
        return self.known.get(key)

    def tell(self, key: bytes, turn: KeptTurn) -> None:
        """See ``SharedTurns``."""
        self.told[key] = turn


async def test_a_turn_of_another_process_is_known(model: ServedModel) -> None:
    """A prompt begins with what another process has told; what is known here is not asked for."""
    first = Talk(model, TurnMemory(shared=(one := Others())))
    known = first.answered([USER], WRITTEN)
    second = Talk(model, TurnMemory(shared=(other := Others(one.told))))
    messages = [USER, CALLED, RESULT]

    for _ in range(2):
        await second.turn(messages).recall(10)
        assert second.prompt(messages)[0][: len(known)] == known
    assert other.asked == 1


async def test_any_json_has_a_key(model: ServedModel) -> None:
    """Numbers of any size and halves of characters, which a client's JSON may hold, do no harm."""
    odd = {"role": "user", "content": "\ud800", "x": 10**40}
    talk = Talk(model, TurnMemory(shared=Others()))
    turn = talk.turn([odd, {"role": "assistant", "content": "Hello"}, USER])

    await turn.recall(100_000)
    assert turn.begin("Hello \ud800") is None and talk.notes == ["unknown"]
