"""What all sections of the rules are made of."""

import re
from typing import Annotated

import msgspec
from msgspec import Meta, inspect

Share = Annotated[float, Meta(ge=0, le=1)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\s\x00-\x1f]+$")]

AT = " - at `$"
"""What msgspec puts between a message and its place, which is like ``.engines[0].role``."""

_STEP = re.compile(r"\.(\w+)|\[[^\]]*\]")


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all sections."""


def add_choices(text: str, kind: type) -> str:
    """Add to msgspec's message about a value of ``kind`` the words that may stand there, if it is about such a word."""
    message, _, place = text.partition(AT)
    if not message.startswith("Invalid enum value"):
        return text
    here = _bare(inspect.type_info(kind))
    for step in _STEP.finditer(place):
        here = _bare(_enter(here, step[1]))
    assert isinstance(here, inspect.LiteralType)
    return f"{message}; it may be {', '.join(map(str, here.values))}{text[len(message) :]}"


def _enter(here: inspect.Type, name: str | None) -> inspect.Type:
    if isinstance(here, inspect.StructType):
        return next(field.type for field in here.fields if field.encode_name == name)
    if isinstance(here, inspect.DictType):
        return here.value_type
    assert isinstance(here, inspect.VarTupleType)
    return here.item_type


def _bare(here: inspect.Type) -> inspect.Type:
    while isinstance(here, inspect.Metadata | inspect.UnionType):
        if isinstance(here, inspect.Metadata):
            here = here.type
        else:
            words = [one for one in here.types if isinstance(one, inspect.LiteralType)]
            here = next(one for one in (*words, *here.types) if not isinstance(one, inspect.NoneType))
    return here
