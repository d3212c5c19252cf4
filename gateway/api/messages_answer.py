"""Answers and errors of ``/v1/messages``, in Anthropic's words. No I/O."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from gateway.api.blocks import AnswerBlock, BlockEvent, BlockRow, list_blocks
from gateway.api.choices import Choice, Ending
from gateway.api.prepare import PreparedRequest
from gateway.api.respond import MadeChoice, unfinished
from gateway.errors import ErrorShape, GatewayError
from gateway.http.body import JsonObject
from gateway.relay.types import Finish, Tokens

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def spell_event(kind: str, **fields: Any) -> bytes:
    """Return one event of a stream, whose name stands in its data, too."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode({"type": kind, **fields}))


def describe_error(error: GatewayError) -> dict[str, str]:
    """Return the error's kind and words; the field that is wrong is named there, as there is no place for it."""
    kind = KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    named = error.param is None or error.param in error.message
    return {"type": kind, "message": error.message if named else f"{error.param}: {error.message}"}


ERRORS = ErrorShape(
    spell_body=lambda error: msgspec.json.encode({"type": "error", "error": describe_error(error)}),
    spell_event=lambda error: spell_event("error", error=describe_error(error)),
)


def count_usage(prepared: PreparedRequest, choice: Choice | None) -> dict[str, int]:
    """Return the usage. The cached part of the prompt is counted apart; it is known at the end."""
    cached = (choice.cached_tokens or 0) if choice is not None else 0
    return {
        "input_tokens": prepared.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": choice.completion_tokens if choice is not None else 0,
    }


def spell_reason(ending: Ending) -> dict[str, str | None]:
    """Return why the answer ended, and the stop sequence where one was found."""
    found = ending.stop_reason if ending.reason == "stop" and isinstance(ending.stop_reason, str) else None
    reason = "stop_sequence" if found is not None else REASONS.get(ending.reason, "end_turn")
    return {"stop_reason": reason, "stop_sequence": found}


def sign(text: str) -> str:
    """Return what stands for a signature of thoughts: clients want one and send it back, and nobody checks it."""
    return blake2b(text.encode(), digest_size=24).hexdigest()


def spell_block(block: AnswerBlock) -> dict[str, Any]:
    """Return a complete block."""
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": block.text, "signature": sign(block.text)}
    if block.kind == "text":
        return {"type": "text", "text": block.text}
    arguments = msgspec.Raw(block.text.encode() or b"{}")
    return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": arguments}


OPENINGS: Mapping[str, Mapping[str, Any]] = {
    "reasoning": {"type": "thinking", "thinking": "", "signature": ""},
    "text": {"type": "text", "text": ""},
    "call": {"type": "tool_use", "input": {}},
}
DELTAS = {
    "reasoning": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "call": ("input_json_delta", "partial_json"),
}


def spell_news(event: BlockEvent) -> bytes:
    """Return the events of some news of a block."""
    block = event.block
    if event.what == "begin":
        named = {"id": block.call_id, "name": block.name} if block.kind == "call" else {}
        return spell_event("content_block_start", index=block.index, content_block={**OPENINGS[block.kind], **named})
    if event.what == "grow":
        kind, key = DELTAS[block.kind]
        return spell_event("content_block_delta", index=block.index, delta={"type": kind, key: event.text})
    end = spell_event("content_block_stop", index=block.index)
    if block.kind != "reasoning":
        return end
    signed = {"type": "signature_delta", "signature": sign(block.text)}
    return spell_event("content_block_delta", index=block.index, delta=signed) + end


class MessageEvents:
    """The ``EventWriter`` of messages."""

    def __init__(self, prepared: PreparedRequest, choice: Choice) -> None:
        self._prepared = prepared
        self._choice = choice
        self._row = BlockRow()
        self._is_opened = False
        self._is_ended = False

    def take(self, index: int, tokens: Tokens) -> bytes:
        """See ``EventWriter``."""
        opening = self._open()
        addition = self._choice.take(tokens)
        news = () if addition is None else self._row.add(addition)
        return opening + b"".join(map(spell_news, news))

    def finish(self, index: int, finish: Finish) -> bytes:
        """See ``EventWriter``."""
        opening = self._open()
        ending = self._choice.end(finish)
        self._is_ended = True
        news = [*self._row.add(ending.parts), *self._row.close()]
        usage = count_usage(self._prepared, self._choice)
        last = spell_event("message_delta", delta=spell_reason(ending), usage=usage)
        return opening + b"".join(map(spell_news, news)) + last

    def whole(self) -> None:
        """See ``EventWriter``."""

    def end(self) -> bytes:
        """See ``EventWriter``."""
        if not self._is_ended:
            raise unfinished()
        return spell_event("message_stop")

    def fail(self, error: GatewayError) -> bytes:
        """See ``EventWriter``."""
        return ERRORS.spell_event(error)

    def _open(self) -> bytes:
        if self._is_opened:
            return b""
        self._is_opened = True
        message = spell_message(self._prepared, [], None, None)
        return spell_event("message_start", message=message) + spell_event("ping")


def spell_message(
    prepared: PreparedRequest, content: Sequence[Any], ending: Ending | None, choice: Choice | None
) -> dict[str, Any]:
    """Return a message, whole or as it begins."""
    reason = {"stop_reason": None, "stop_sequence": None} if ending is None else spell_reason(ending)
    usage = count_usage(prepared, choice)
    named = {"id": prepared.id, "type": "message", "role": "assistant", "model": prepared.model_name}
    return {**named, "content": content, **reason, "usage": usage}


class MessagesShape:
    """See ``AnswerShape``."""

    errors = ERRORS

    def open_stream(self, prepared: PreparedRequest, choices: Sequence[Choice], asked: JsonObject) -> MessageEvents:
        """See ``AnswerShape``."""
        return MessageEvents(prepared, choices[0])

    def spell_whole(
        self, prepared: PreparedRequest, choices: Sequence[Choice], made: Sequence[MadeChoice], asked: JsonObject
    ) -> dict[str, Any]:
        """See ``AnswerShape``."""
        gathered, ending = made[0]
        return spell_message(
            prepared, [spell_block(block) for block in list_blocks(gathered, ending)], ending, choices[0]
        )
