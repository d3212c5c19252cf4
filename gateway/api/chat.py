"""``POST /v1/chat/completions``: messages to a prepared request."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from gateway.api.fields import MOST_LOGPROBS, is_structured, read_fields
from gateway.api.models import Models
from gateway.api.prepare import Caller, PreparedRequest, Prompted, encode_prompt, prepare_request, read_by_engine
from gateway.api.tool_choice import ToolChoice, read_tool_choice
from gateway.api.wire import ChatFields
from gateway.errors import bad_field
from gateway.http.body import JsonObject
from gateway.text.conversation import TEXT_PARTS, THOUGHT_PARTS
from gateway.text.detokenise import OutputText, TextOptions
from gateway.text.model import ServedModel
from gateway.text.parsers.output import Parts, PartsWanted
from gateway.text.parsers.reader import AnswerReader
from gateway.text.shapes import PROMPT_FIELDS
from gateway.text.template import TemplateRejected
from gateway.text.turns import ModelWords, OngoingTurn, Said, say
from policies.where import Where

ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_ -]{0,63}")
OPENING_TOKENS = 1024
"""How far back a prompt is looked at for where its last turn begins."""


async def prepare_chat(value: JsonObject, size_bytes: int, models: Models, caller: Caller) -> PreparedRequest:
    """Render and tokenise the conversation. ``size_bytes``: of the body. Raises GatewayError."""
    fields, rest = read_fields(value, ChatFields)
    model = models.find(fields.model, caller.rules.models)
    check_messages(fields.messages)
    check_options(fields)
    choice = read_tool_choice(fields)
    shown = {name: getattr(fields, name) for name in PROMPT_FIELDS} | {"tools": choice.shown or None}
    turn = follow_turn(fields, choice, model, models, caller)
    prompt = await read_chat(shown, size_bytes, fields, model, models, caller, turn)
    completion_limit = fields.max_completion_tokens
    prompted = Prompted(
        id_prefix="chatcmpl",
        prompts=(prompt,),
        prompt_field="messages",
        limit_field="max_tokens" if completion_limit is None else "max_completion_tokens",
        max_tokens=fields.max_tokens if completion_limit is None else completion_limit,
        default_max_tokens=None,
        logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
        make_reader=find_reader(fields, choice, is_structured(rest), model, prompt),
        turn=turn,
    )
    return prepare_request(fields, choice.constrain(rest), prompted, model, caller)


async def read_chat(
    chat: Mapping[str, Any],
    size_bytes: int,
    fields: ChatFields,
    model: ServedModel,
    models: Models,
    caller: Caller,
    turn: OngoingTurn | None = None,
) -> Sequence[int]:
    """Return the prompt's ids, made here or by an engine, as the model's ``reader`` has it. Raises GatewayError.

    ``chat``: the fields that make the prompt.
    """
    readings, template = models.readings, model.template
    if readings is not None and readings.is_for_engine(model.name, chat):
        read_by_engine(chat, model, caller, "messages")
        return await readings.ask(model.name, chat, Where.of(caller.rules).allows)
    if template is None:
        raise bad_field("model", f"The model {model.name!r} has no chat template.", "no_chat_template")
    if turn is not None:
        await turn.recall(size_bytes)
    guard = model.control.guard(caller.rules.prompts.special_tokens)
    render = partial(template.render_chat, chat, partial(models.note_unread, model.name), guard)
    try:
        return await encode_prompt(
            render, size_bytes, fields, model, "messages", bool(fields.add_special_tokens), caller, turn
        )
    except TemplateRejected as error:
        raise bad_field(error.param, str(error), error.code) from error


def follow_turn(
    fields: ChatFields, choice: ToolChoice, model: ServedModel, models: Models, caller: Caller
) -> OngoingTurn | None:
    """Return what knows the exact ids of the conversation's earlier turns, where they are of use."""
    whole = fields.truncate_prompt_tokens is None and not fields.add_special_tokens
    if not (model.reuses_turns and whole) or fields.continue_final_message:
        return None

    def read(prompt: Sequence[int], answer: Sequence[int]) -> Said:
        reader = model.parsers.make_reader(find_opening(model, prompt), choice.shown or None)
        output = OutputText(model.vocabulary, TextOptions(shown={} if reader is None else model.shown_tokens))
        text = output.push(answer).text + output.finish(terminator=False)
        return say([Parts(text)] if reader is None else [reader.push(text), reader.flush()])

    words = ModelWords(model.encoder.encode_now, read, model.end_texts)
    scope = (caller.tenant, caller.salt_of(model.name), model.name)
    return OngoingTurn(models.turns, scope, fields.messages, words, partial(models.note_turn, model.name))


def find_reader(
    fields: ChatFields, choice: ToolChoice, structured: bool, model: ServedModel, prompt: Sequence[int]
) -> Callable[[], AnswerReader] | None:
    """Return what makes the readers of the answer's parts; None where the answer is content alone."""
    forced = choice.schema is not None
    tools = choice.shown if choice.shown and choice.callable and not forced else None
    opening = find_opening(model, prompt)
    wanted = PartsWanted(
        fields.include_reasoning is not False, fields.parallel_tool_calls is not False, json=structured or forced
    )

    def make_reader() -> AnswerReader | None:
        if forced:
            return model.parsers.make_forced(opening, wanted, choice.name)
        return model.parsers.make_reader(opening, tools, wanted)

    return None if make_reader() is None else cast("Callable[[], AnswerReader]", make_reader)


def find_opening(model: ServedModel, prompt: Sequence[int]) -> str:
    """Return the prompt's last words, from its last turn on: what begins the answer."""
    vocabulary, parsers = model.vocabulary, model.parsers
    start = len(prompt)
    while start > max(0, len(prompt) - OPENING_TOKENS):
        start -= 1
        token_id = prompt[start]
        if token_id in vocabulary.special and vocabulary.added[token_id] not in parsers.shown:
            break
    return model.tokenizer.decode(list(prompt[start:]), skip_special_tokens=False)


def check_options(fields: ChatFields) -> None:
    """Refuse options that contradict each other."""
    if fields.top_logprobs and not fields.logprobs:
        raise bad_field("top_logprobs", f"top_logprobs (0 to {MOST_LOGPROBS}) needs logprobs to be true.")
    if fields.continue_final_message and fields.add_generation_prompt:
        raise bad_field("continue_final_message", "continue_final_message excludes add_generation_prompt.")


def check_messages(messages: list[dict[str, Any]]) -> None:
    """Check what the template relies on: a role, and content in one of its spellings."""
    if not messages:
        raise bad_field("messages", "messages must not be empty.", "invalid_value")
    for rank, message in enumerate(messages):
        path = f"messages[{rank}]"
        if not isinstance(message.get("role"), str) or not message["role"]:
            raise bad_field(f"{path}.role", "A message needs a role.", "missing_field")
        if ROLE.fullmatch(message["role"]) is None:
            # Templates write it between control tokens.
            raise bad_field(f"{path}.role", "A role is a plain word.", "invalid_value")
        check_content(message.get("content"), f"{path}.content")
        calls = message.get("tool_calls")
        if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
            raise bad_field(f"{path}.tool_calls", "tool_calls must be a list of objects.", "invalid_type")


def find_text(part: Mapping[str, Any]) -> Any:
    """Return what a part says."""
    return part.get("name" if part["type"] == "tool_reference" else "text", part.get("refusal"))


def check_content(content: Any, path: str) -> None:
    """Check one content: null, text, or parts of text."""
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise bad_field(path, "content must be text or a list of parts.", "invalid_type")
    for rank, part in enumerate(content):
        if isinstance(part, str):
            continue
        place = f"{path}[{rank}]"
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise bad_field(place, "A content part is an object with a type.", "invalid_type")
        if part["type"] not in TEXT_PARTS:
            raise bad_field(
                f"{place}.type", f"Content of type {part['type'][:40]!r} is not supported.", "unsupported_content"
            )
        if part["type"] not in THOUGHT_PARTS and not isinstance(find_text(part), str):
            raise bad_field(f"{place}.text", "A text part needs its text.", "invalid_type")
