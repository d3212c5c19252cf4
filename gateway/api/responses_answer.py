"""Answers of ``/v1/responses``: output items, and the events that tell of them in order. No I/O."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from gateway.api.blocks import AnswerBlock, BlockEvent, BlockRow, list_blocks
from gateway.api.choices import Choice, Ending
from gateway.api.prepare import PreparedRequest
from gateway.api.respond import MadeChoice, unfinished
from gateway.api.response_tools import name_tools
from gateway.api.responses import pack_thoughts, wants_thoughts
from gateway.errors import OPENAI_ERRORS, GatewayError
from gateway.http.body import JsonObject
from gateway.relay.types import Finish, Tokens

ResponseEvent = tuple[str, dict[str, Any]]
"""Kind and fields."""

REPEATED: dict[str, Any] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "service_tier": "default",
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""What a response repeats of its request, and what stands there where the client gave nothing."""
PREFIXES = {"reasoning": "rs", "text": "msg", "call": "fc"}
PARTS = {"reasoning": "reasoning_text", "text": "output_text"}


class ResponseSpeller:
    """Spells one response's items and itself."""

    def __init__(self, prepared: PreparedRequest, asked: JsonObject) -> None:
        self._prepared = prepared
        self._asked = asked
        self.names = name_tools(asked.get("tools"))
        self._packs_thoughts = wants_thoughts(asked)
        self._key = prepared.id.rpartition("_")[2]

    def id_of(self, block: AnswerBlock) -> str:
        """The name of a block's item."""
        return f"{PREFIXES[block.kind]}_{self._key}{block.index:02d}"

    def spell_item(self, block: AnswerBlock, status: str) -> dict[str, Any]:
        """Return an item: empty where it has just begun, else with all that it has."""
        begun = status == "in_progress"
        named = {"id": self.id_of(block), "status": status}
        if block.kind == "call":
            called = self.names.spell_call(block.name, "" if begun else block.text)
            return {**named, "call_id": block.call_id, **called}
        content = [] if begun else [spell_part(block)]
        if block.kind == "text":
            return {**named, "type": "message", "role": "assistant", "content": content}
        packed = pack_thoughts(block.text) if self._packs_thoughts and not begun else None
        return {**named, "type": "reasoning", "summary": [], "content": content, "encrypted_content": packed}

    def name_of(self, block: AnswerBlock) -> str:
        """The name that a block's events have."""
        if block.kind != "call":
            return PARTS[block.kind]
        return "custom_tool_call_input" if block.name in self.names.custom else "function_call_arguments"

    def spell_piece(self, block: AnswerBlock, text: str) -> str:
        """Return what a block grew by; calls come whole."""
        return self.names.spell_piece(block.name, text) if block.kind == "call" else text

    def spell_done(self, block: AnswerBlock) -> dict[str, Any]:
        """Return what the event of a block's end tells of it."""
        if block.kind != "call":
            return {"text": block.text}
        called = self.names.spell_call(block.name, block.text)
        return {key: called[key] for key in ("arguments", "input", "name") if key in called}

    def spell_response(
        self,
        blocks: Sequence[AnswerBlock],
        ending: Ending | None,
        choice: Choice | None,
        error: GatewayError | None = None,
    ) -> dict[str, Any]:
        """Return the response: as it begins, complete, cut, or failed."""
        prepared = self._prepared
        cut = ending is not None and ending.reason == "length"
        status = "failed" if error else "in_progress" if ending is None else "incomplete" if cut else "completed"
        last = blocks[-1] if cut and blocks else None
        items = [self.spell_item(block, "incomplete" if block is last else "completed") for block in blocks]
        given = {name: entry for name in REPEATED if (entry := self._asked.get(name)) is not None}
        thoughts = self._asked.get("reasoning")
        if isinstance(thoughts, dict):
            given["reasoning"] = REPEATED["reasoning"] | thoughts
        return {
            "id": prepared.id,
            "object": "response",
            "created_at": prepared.created,
            "status": status,
            "error": None if error is None else {"code": "server_error", "message": error.message},
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "model": prepared.model_name,
            "output": items,
            "store": bool(self._asked.get("store")),
            **REPEATED,
            **given,
            "usage": None if choice is None else count_usage(prepared, choice),
        }


def count_usage(prepared: PreparedRequest, choice: Choice) -> dict[str, Any]:
    """Return the usage; how many tokens were thoughts is not counted."""
    prompt, made = prepared.prompt_tokens, choice.completion_tokens
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": choice.cached_tokens or 0},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + made,
    }


def spell_part(block: AnswerBlock, *, empty: bool = False) -> dict[str, Any]:
    """Return a message's or thoughts' only part."""
    text = "" if empty else block.text
    extra: dict[str, Any] = {"annotations": [], "logprobs": []} if block.kind == "text" else {}
    return {"type": PARTS[block.kind], "text": text, **extra}


class ResponseEvents:
    """The ``EventWriter`` of responses."""

    def __init__(self, prepared: PreparedRequest, choice: Choice, asked: JsonObject) -> None:
        self._speller = ResponseSpeller(prepared, asked)
        self._choice = choice
        self._row = BlockRow()
        self._number = 0
        self._response: dict[str, Any] | None = None

    def take(self, index: int, tokens: Tokens) -> bytes:
        """See ``EventWriter``."""
        addition = self._choice.take(tokens)
        events = [] if addition is None else [one for news in self._row.add(addition) for one in self._tell(news)]
        return self._spell([*self._open(), *events])

    def finish(self, index: int, finish: Finish) -> bytes:
        """See ``EventWriter``."""
        ending = self._choice.end(finish)
        news = [*self._row.add(ending.parts), *self._row.close()]
        events = [one for entry in news for one in self._tell(entry)]
        self._response = self._speller.spell_response(self._row.blocks, ending, self._choice)
        return self._spell([*self._open(), *events])

    def whole(self) -> dict[str, Any] | None:
        """See ``EventWriter``."""
        return self._response

    def end(self) -> bytes:
        """See ``EventWriter``: the last event waits until the response is kept, as clients go on from it at once."""
        if self._response is None:
            raise unfinished()
        return self._spell([(f"response.{self._response['status']}", {"response": self._response})])

    def fail(self, error: GatewayError) -> bytes:
        """See ``EventWriter``."""
        told = {"code": error.code or "server_error", "message": error.message, "param": error.param}
        response = self._speller.spell_response(self._row.blocks, None, None, error)
        return self._spell([*self._open(), ("error", told), ("response.failed", {"response": response})])

    def _open(self) -> list[ResponseEvent]:
        if self._number:
            return []
        response = self._speller.spell_response([], None, None)
        return [("response.created", {"response": response}), ("response.in_progress", {"response": response})]

    def _tell(self, news: BlockEvent) -> Iterator[ResponseEvent]:
        """Yield the events of some news of a block."""
        block = news.block
        where = {"item_id": self._speller.id_of(block), "output_index": block.index}
        place = where | ({} if block.kind == "call" else {"content_index": 0})
        name = self._speller.name_of(block)
        extra: dict[str, Any] = {"logprobs": []} if block.kind == "text" else {}
        if news.what == "begin":
            item = self._speller.spell_item(block, "in_progress")
            yield "response.output_item.added", {"output_index": block.index, "item": item}
            if block.kind != "call":
                yield "response.content_part.added", place | {"part": spell_part(block, empty=True)}
        elif news.what == "grow":
            yield f"response.{name}.delta", place | {"delta": self._speller.spell_piece(block, news.text)} | extra
        else:
            yield f"response.{name}.done", place | self._speller.spell_done(block) | extra
            if block.kind != "call":
                yield "response.content_part.done", place | {"part": spell_part(block)}
            item = self._speller.spell_item(block, "completed")
            yield "response.output_item.done", {"output_index": block.index, "item": item}

    def _spell(self, events: Sequence[ResponseEvent]) -> bytes:
        spelled = []
        for kind, fields in events:
            data = msgspec.json.encode({"type": kind, "sequence_number": self._number, **fields})
            self._number += 1
            spelled.append(b"event: %s\ndata: %s\n\n" % (kind.encode(), data))
        return b"".join(spelled)


class ResponsesShape:
    """See ``AnswerShape``."""

    errors = OPENAI_ERRORS

    def open_stream(self, prepared: PreparedRequest, choices: Sequence[Choice], asked: JsonObject) -> ResponseEvents:
        """See ``AnswerShape``."""
        return ResponseEvents(prepared, choices[0], asked)

    def spell_whole(
        self, prepared: PreparedRequest, choices: Sequence[Choice], made: Sequence[MadeChoice], asked: JsonObject
    ) -> dict[str, Any]:
        """See ``AnswerShape``."""
        gathered, ending = made[0]
        return ResponseSpeller(prepared, asked).spell_response(list_blocks(gathered, ending), ending, choices[0])
