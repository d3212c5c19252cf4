"""The READMEs' tables that are made from the code: ``python -m tests.readme`` writes them, a test compares them."""

import argparse
import importlib
import inspect
import re
from collections.abc import Iterable
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from prometheus_client import Metric

from gateway.__main__ import COMMANDS
from gateway.api.fates import FATES_BY_API, MEANINGS
from gateway.config.settings import Settings
from gateway.index.metered import MeteredIndex
from gateway.limits.usage import UsageMeter
from gateway.telemetry.loop import LoopWatch
from gateway.telemetry.metrics import Metrics
from policies.explain import REASONS
from policies.rule_documents import RuleDocument
from policies.rules import Rules
from tests.compatibility import ROWS
from tests.fakes.memory_index import MemoryIndex
from tests.valkey import make_away

ROOT = Path(__file__).resolve().parents[1]
TABLES: dict[str, tuple[str, ...]] = {
    "README.md": (),
    "CONTRIBUTING.md": (),
    "gateway/README.md": ("settings", "commands", "fields", "metrics"),
    "backends/README.md": ("compatibility",),
    "policies/README.md": ("reasons", "rules"),
    "docker/README.md": (),
    "tests/README.md": (),
}
"""The documents, and which generated tables each holds."""


def struct_rows(kind: type[msgspec.Struct], prefix: str = "", skip: tuple[type, ...] = ()) -> list[str]:
    """One row for each field, nested sections flattened to dotted paths."""
    rows = []
    hints = get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        hint, path = hints[field.name], f"{prefix}{field.encode_name}"
        section, many = _section(hint)
        if section in skip:
            rows.append(f"| `{path}` | | see the rules table |")
        elif section is not None:
            rows += struct_rows(section, f"{path}{'[]' if many else ''}.", skip)
        else:
            rows.append(f"| `{path}` | {_default(field)} | {_description(hint)} |")
    return rows


def _section(hint: Any) -> tuple[type[msgspec.Struct] | None, bool]:
    if get_origin(hint) is Annotated:
        return _section(get_args(hint)[0])
    if inspect.isclass(hint) and issubclass(hint, msgspec.Struct):
        return hint, False
    if get_origin(hint) is UnionType:
        return _section(get_args(hint)[0])
    if (
        get_origin(hint) is tuple
        and inspect.isclass(get_args(hint)[0])
        and issubclass(get_args(hint)[0], msgspec.Struct)
    ):
        return get_args(hint)[0], True
    return None, False


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if isinstance(value, tuple):
        value = list(value)
    return f"`{msgspec.json.encode(value).decode()}`"


def _description(hint: Any) -> str:
    if get_origin(hint) is not Annotated:
        return _choices(hint, "")
    texts = [meta.description for meta in hint.__metadata__ if isinstance(meta, msgspec.Meta) and meta.description]
    inner, text = get_args(hint)[0], " ".join(texts).replace("``", "`")
    return f"{text} {_choices(inner, text)}".strip() or _description(inner)


def _choices(hint: Any, text: str) -> str:
    """The words that may stand there, unless the text tells of them all."""
    words = [word for one in (hint, *get_args(hint)) if get_origin(one) is Literal for word in get_args(one)]
    told = all(re.search(rf"\b{word}\b", text) for word in words)
    return "" if told else f"One of {', '.join(f'`{word}`' for word in words)}."


def metric_rows() -> list[str]:
    """One row for each metric."""
    registry = Metrics().registry
    MeteredIndex(MemoryIndex(), registry)
    UsageMeter(make_away(), registry)
    LoopWatch(registry)
    found: list[Metric] = sorted(registry.collect(), key=lambda metric: metric.name)
    return [f"| `{_exposed(metric)}` | {metric.type} | {metric.documentation} |" for metric in found]


def _exposed(metric: Metric) -> str:
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def command_rows() -> list[str]:
    """One row for each command, and one for each of its verbs."""
    rows = []
    for name, (module_name, text) in COMMANDS.items():
        rows.append(f"| `pdd {name}` | {text} |")
        if module_name.startswith("gateway.cli."):  # the others need more than the gateway, and have no verbs
            parser = argparse.ArgumentParser()
            command: Any = importlib.import_module(module_name)
            command.add_arguments(parser)
            rows += verb_rows(name, parser)
    return rows


def verb_rows(name: str, parser: argparse.ArgumentParser) -> list[str]:
    """One row for each subcommand of a command."""
    return [
        f"| `pdd {name} {verb.dest}` | {verb.help} |"
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for verb in action._choices_actions
    ]


def field_rows() -> list[str]:
    """One row for each API and fate of a request's fields."""
    rows = []
    for api, fates in FATES_BY_API.items():
        names = {fate: [f"`{name}`" for name in sorted(fates) if fates[name] == fate] for fate in MEANINGS}
        rows += [f"| {api} | {fate}: {MEANINGS[fate]} | {', '.join(names[fate])} |" for fate in MEANINGS if names[fate]]
    return rows


def compatibility_rows() -> list[str]:
    """One row for each combination of what engines and links may be."""
    rows = []
    for row in ROWS:
        by = f"`{row.by.rpartition('/')[2]}`" if row.verdict == "works" else row.by
        if row.verdict == "refused":
            by = f'"{row.by}"'
        cells = (row.family, row.ranks, row.dtype, row.connector, row.path, f"**{row.verdict}**", by)
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def tables() -> dict[str, list[str]]:
    """Every generated table by its marker."""
    return {
        "settings": ["| key | default | meaning |", "|---|---|---|", *struct_rows(Settings, skip=(Rules,))],
        "rules": ["| field | default | meaning |", "|---|---|---|", *struct_rows(RuleDocument)],
        "metrics": ["| metric | type | meaning |", "|---|---|---|", *metric_rows()],
        "reasons": ["| reason | meaning |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in REASONS.items())],
        "fields": ["| API | what becomes of it | fields |", "|---|---|---|", *field_rows()],
        "compatibility": [
            "| family | ranks, P -> MD | KV | connector | path | | by |",
            "|---|---|---|---|---|---|---|",
            *compatibility_rows(),
        ],
        "commands": ["| command | what it does |", "|---|---|", *command_rows()],
    }


def read_document(name: str) -> str:
    """Return a document's text."""
    return (ROOT / name).read_text(encoding="utf-8")


def find_table(text: str, name: str) -> tuple[str, str, str]:
    """Return what stands before a table, in it, and behind it; its markers belong to the outer parts."""
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, found, rest = text.partition(start)
    inside, found_end, after = rest.partition(end)
    if not (found and found_end):
        raise ValueError(f"there is no table between {start.strip()} and {end}")
    return before + start, inside, end + after


def fill(text: str, names: Iterable[str]) -> str:
    """Return a document with its generated tables as they should be."""
    rows = tables()
    for name in names:
        before, _, after = find_table(text, name)
        text = before + "\n".join(rows[name]) + "\n" + after
    return text


if __name__ == "__main__":
    for document, held in TABLES.items():
        (ROOT / document).write_text(fill(read_document(document), held), encoding="utf-8")
