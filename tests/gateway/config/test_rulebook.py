"""The rules in force."""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from gateway.config.document_store import Document
from gateway.config.live import DocumentsRefused
from gateway.config.rulebook import BUILT_A_TURN, RULES, RuleBook
from gateway.errors import GatewayError
from policies.rules import Rules, parse_rules

BASE = parse_rules({"handoff": {"mode": "one_shot"}})


def documents(**bodies: Any) -> list[Document]:
    """Stored documents by name."""
    return [
        Document(RULES, name, 1, number, 0, "ann", msgspec.json.encode(body).decode())
        for number, (name, body) in enumerate(bodies.items())
    ]


def test_configuration_holds_without_documents() -> None:
    """Where Redis has no rules, those of the configuration hold, also under a tenant's document."""
    book = RuleBook(BASE)
    assert book.of("any") == BASE
    book.apply(documents(acme={"direct_classic": True}))
    assert book.of("any") == BASE
    assert book.of("acme") == parse_rules({"handoff": {"mode": "one_shot"}, "direct_classic": True})


def test_default_document_replaces_the_configuration() -> None:
    """The default document lies over the built-in rules, not over the configuration's; tenants' lie over it."""
    book = RuleBook(BASE)
    book.apply(documents(default={"regions": ["a"]}, acme={"direct_classic": True}))
    assert book.of("any") == parse_rules({"regions": ["a"]})
    assert book.of("acme") == parse_rules({"regions": ["a"], "direct_classic": True})
    book.apply([])
    assert book.of("acme") == BASE


@pytest.mark.parametrize(
    ("bodies", "name"),
    [
        ({"default": {"handof": {}}, "acme": {}}, "default"),
        ({"default": {}, "acme": {"handof": {}}}, "acme"),
        ({"acme": []}, "acme"),
    ],
)
def test_a_bad_document_changes_nothing(bodies: dict[str, Any], name: str) -> None:
    """One bad document refuses the whole set, names itself, and what was in force stays."""
    book = RuleBook(BASE)
    book.apply(documents(default={"regions": ["a"]}))
    with pytest.raises(DocumentsRefused) as refused:
        book.apply(documents(**bodies))
    assert refused.value.name == name
    assert book.of("acme") == parse_rules({"regions": ["a"]})


def test_unknown_rules_serve_nobody() -> None:
    """Until the documents were read once nobody is served: a tenant's rules may forbid what the base allows."""
    book = RuleBook(BASE, known=False)
    with pytest.raises(GatewayError) as refused:
        book.of("acme")
    assert (refused.value.status, refused.value.code) == (503, "rules_unknown")
    with pytest.raises(DocumentsRefused):
        book.apply(documents(default=[]))
    assert not book.known
    book.apply([])
    assert book.of("acme") == BASE


def test_canary_by_session() -> None:
    """A share of a tenant's sessions gets the canary's rules, always the same ones."""
    book = RuleBook(Rules())
    book.apply(documents(default={"canary": {"share": 0.5, "rules": {"direct_classic": True}}}))
    first = [book.of("acme", f"s{number}").direct_classic for number in range(100)]
    assert 20 < sum(first) < 80
    assert first == [book.of("acme", f"s{number}").direct_classic for number in range(100)]


def test_only_what_changed_is_built_again() -> None:
    """A change of one tenant's document leaves the others' rules the same objects; one of the default changes all."""
    book = RuleBook(Rules())
    default, acme, other = documents(default={"regions": ["a"]}, acme={"direct_classic": True}, other={})
    book.apply([default, acme, other])
    before = book.of("acme")
    book.apply([default, acme, replace(other, revision=9, body='{"priority": "low"}')])
    assert book.of("acme") is before and book.of("other").priority == "low"
    book.apply([replace(default, revision=10, body="{}"), acme, other])
    assert book.of("acme").regions is None and book.of("acme").direct_classic
    book.replace(BASE)
    book.apply([default, acme, other])
    assert book.of("acme") == before


async def test_what_is_prepared_in_turns_is_applied_as_it_is() -> None:
    """Other work gets its turns while thousands of documents are built, and applying them builds none again."""
    book = RuleBook(Rules())
    many = documents(default={}, **{f"t{number}": {"limits": {"concurrent": number + 1}} for number in range(1000)})
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(others())
    await book.prepare(many)
    running.cancel()
    assert turns >= 1000 // BUILT_A_TURN - 1
    assert book.of("t7").limits.concurrent is None
    book.apply(many)
    assert book.of("t7").limits.concurrent == 8
    before = book.of("t7")
    book.apply(list(many))
    assert book.of("t7") is before
    with pytest.raises(DocumentsRefused):
        await book.prepare(documents(default={}, bad={"pipelines": []}))
    assert book.of("t7").limits.concurrent == 8
