"""A served model's text side, loaded from its Hugging Face directory: no weights are read."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from gateway.text.context import ContextLength, find_context
from gateway.text.control_tokens import NO_CONTROL_TOKENS, ControlTokens
from gateway.text.parsers.guess import guess_parsers
from gateway.text.parsers.registry import NO_PARSERS, Parsers, UnknownParser, find_parsers
from gateway.text.template import ChatTemplate, TemplateRejected
from gateway.text.token_files import ModelDirectoryError, read_tokens
from gateway.text.tokenise import PromptEncoder
from gateway.text.vocabulary import Vocabulary

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

MEDIA_WORDS = ("vision", "audio", "image", "video", "thinker")
"""Of the names in a config.json those that speak of other inputs than text."""
REASONING_FIELDS = frozenset({"reasoning", "reasoning_content"})
"""What vLLM calls it, and what most others do."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What the gateway knows of a model. ``template`` None: the model has none, so it serves no chat."""

    name: str
    tokenizer: Tokenizer
    encoder: PromptEncoder
    vocabulary: Vocabulary
    template: ChatTemplate | None
    eos_token_ids: frozenset[int]
    context: ContextLength
    parsers: Parsers = NO_PARSERS
    """What tells reasoning and tool calls from the content of its answers."""
    offers_tools: bool = False
    control: ControlTokens = NO_CONTROL_TOKENS
    """Whether its template shows tools to the model."""
    takes_media: bool = False
    """Whether it reads images, sounds or films beside text."""
    reasoning_fields: frozenset[str] = REASONING_FIELDS
    """Where answers have their reasoning."""

    encodes: bool = True
    """Whether texts can be tokenised here; else only its engines can."""
    reuses_turns: bool = True
    """Whether prompts begin with the exact ids of earlier turns."""

    @property
    def end_texts(self) -> dict[int, str]:
        """The texts of the tokens that end an answer, of those in front of which a text may be cut."""
        added = {token_id: self.vocabulary.added.get(token_id, "") for token_id in self.eos_token_ids}
        return {token_id: text for token_id, text in added.items() if self.encoder.may_cut_before(text)}

    @property
    def shown_tokens(self) -> dict[int, str]:
        """What readers see of the control tokens that their parsers know."""
        known = {self.tokenizer.token_to_id(token): text for token, text in self.parsers.shown.items()}
        return {token_id: text for token_id, text in known.items() if token_id is not None}

    @property
    def context_tokens(self) -> int:
        """The most that a prompt and its answer may have together, as ``context`` has it now."""
        return self.context.tokens

    def close(self) -> None:
        """End the tokenising threads."""
        self.encoder.close()


def load_model(
    name: str,
    directory: Path,
    *,
    threads: int = 2,
    reasoning_parser: str | None = None,
    tool_parser: str | None = None,
    context_tokens: int | None = None,
    by_engine: bool = False,
) -> ServedModel:
    """Load a model's tokenizer, template, limits and parsers. Raises ModelDirectoryError.

    ``reasoning_parser`` and ``tool_parser``: names of ``gateway.text.parsers.registry``; None: guessed by the template.
    ``context_tokens`` is in place of what engines and the directory tell. ``by_engine``: engines make the prompts.
    """
    if not directory.is_dir():
        raise ModelDirectoryError(f"{directory}: no such directory")
    settings = read_json(directory / "tokenizer_config.json", needed=False)
    tokenizer, encodes = read_tokens(directory, settings, by_engine=by_engine)
    config = read_json(directory / "config.json", needed=True)
    generation = read_json(directory / "generation_config.json", needed=False)
    vocabulary = Vocabulary(tokenizer)
    control = {vocabulary.added[token_id] for token_id in vocabulary.special}
    words = template_text(directory, settings)
    return ServedModel(
        name=name,
        tokenizer=tokenizer,
        encoder=PromptEncoder(tokenizer, threads=threads),
        vocabulary=vocabulary,
        control=ControlTokens(control),
        template=read_template(directory, settings),
        eos_token_ids=find_eos(tokenizer, settings, config, generation),
        context=ContextLength(context_tokens, find_context(config)),
        parsers=choose_parsers(tool_parser, reasoning_parser, words, vocabulary),
        encodes=encodes,
        offers_tools="tools" in words,
        takes_media=any(word in name for name in config for word in MEDIA_WORDS),
    )


def choose_parsers(
    tool_parser: str | None, reasoning_parser: str | None, template: str, vocabulary: Vocabulary
) -> Parsers:
    """Return the parsers of these names, or those that the template speaks of. Raises ModelDirectoryError."""
    guessed = guess_parsers(template)
    tokens = {vocabulary.added[token_id] for token_id in vocabulary.special}
    try:
        return find_parsers(tool_parser or guessed[0], reasoning_parser or guessed[1], tokens)
    except UnknownParser as error:
        raise ModelDirectoryError(str(error)) from None


def read_json(path: Path, *, needed: bool) -> dict[str, Any]:
    """Return a JSON object, or an empty one for a missing file that is not needed."""
    if not path.is_file():
        if needed:
            raise ModelDirectoryError(f"{path}: no such file")
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelDirectoryError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelDirectoryError(f"{path}: not a JSON object")
    return value


def read_template(directory: Path, settings: Mapping[str, Any]) -> ChatTemplate | None:
    """Return the model's templates, of whichever files hold them; None: there are none.

    Those of the tokenizer by name: ``default``, and ``tool_use`` for requests with tools. A processor's, in
    chat_template.json, is for requests without them.
    """
    named = read_named_templates(directory, settings)
    path = directory / "chat_template.json"
    processors = read_json(path, needed=False).get("chat_template")
    plain = processors if isinstance(processors, str) else named.get("default")
    with_tools = named.get("tool_use", named.get("default"))
    if plain is None and with_tools is None:
        return None
    try:
        return ChatTemplate(plain, read_variables(directory, settings), with_tools)
    except TemplateRejected as error:
        raise ModelDirectoryError(f"{directory}: {error}") from error


def template_text(directory: Path, settings: Mapping[str, Any]) -> str:
    """Return all that the directory has of chat templates as one text, to look for words in."""
    files = (directory / "chat_template.jinja", directory / "chat_template.json")
    texts = [path.read_text(encoding="utf-8") for path in files if path.is_file()]
    return "\n".join([*texts, json.dumps(settings.get("chat_template", ""), ensure_ascii=False)])


def read_named_templates(directory: Path, settings: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the tokenizer's templates by name: of files, or else of tokenizer_config.json."""
    files = {path.stem: path for path in sorted((directory / "additional_chat_templates").glob("*.jinja"))}
    if (path := directory / "chat_template.jinja").is_file():
        files["default"] = path
    if files:
        return {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    source = settings.get("chat_template")
    if isinstance(source, list):
        return {str(entry["name"]): str(entry["template"]) for entry in source}
    return {} if source is None else {"default": str(source)}


def read_variables(directory: Path, settings: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the special tokens' texts by name; of special_tokens_map.json too where older settings leave them out."""
    older = {} if "added_tokens_decoder" in settings else read_json(directory / "special_tokens_map.json", needed=False)
    told = {**older, **settings}
    return {key: text for key in SPECIAL_NAMES if (text := token_text(told.get(key))) is not None}


def token_text(token: Any) -> str | None:
    """Return a special token's text, which settings spell as a string or as an object."""
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else None


def find_eos(
    tokenizer: Tokenizer, settings: Mapping[str, Any], config: Mapping[str, Any], generation: Mapping[str, Any]
) -> frozenset[int]:
    """Return the ids that end an answer: the tokenizer's EOS and those of generation_config.json, else config.json."""
    named = generation.get("eos_token_id")
    if named is None:
        named = config.get("eos_token_id")
    ids = set(named if isinstance(named, list) else [] if named is None else [named])
    text = token_text(settings.get("eos_token"))
    if text is not None and (token_id := tokenizer.token_to_id(text)) is not None:
        ids.add(token_id)
    return frozenset(ids)
