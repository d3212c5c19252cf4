"""``pdd audit``: who changed what, without what it was changed to."""

import argparse
import json
from typing import Any

import pytest

from gateway.cli.audit import read_limit, show
from gateway.config.document_store import AuditEntry
from tests.gateway.cli.fleet import pdd
from tests.valkey import open_documents, run_valkey


def test_a_limit_is_a_number_within_what_is_kept() -> None:
    """What is no number of entries is refused before Redis is asked."""
    assert (read_limit("1"), read_limit("10000")) == (1, 10_000)
    for text in ("0", "-1", "10001", "ten", "²", ""):
        with pytest.raises(argparse.ArgumentTypeError):
            read_limit(text)


def test_a_line_tells_what_became_of_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    """A first version was created, a later one changed, and a tombstone deleted it."""
    show([AuditEntry("rules", "acme", "ann", old, old + 1, old == 2, 0, old) for old in (2, 1, 0)], False)
    assert [line[21:] for line in capsys.readouterr().out.splitlines()] == [
        "ann  deleted rules acme  version 2 -> 3",
        "ann  changed rules acme  version 1 -> 2",
        "ann  created rules acme  version 1",
    ]


@pytest.mark.slow
async def test_the_newest_changes_of_every_kind_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    """All kinds are told in one order, no more than asked for and none from before; contents are not."""
    async with run_valkey() as url, open_documents(url) as store:
        entry: dict[Any, Any] = {
            "kind": "rules",
            "name": "old",
            "author": "eve",
            "from": 0,
            "to": 1,
            "deleted": 0,
            "at_ms": 1,
            "revision": 0,
        }
        await store.redis.commands.xadd("pdd:{control}:audit", entry, id="1-0")
        await store.put("key", "k1", {"hash": "SECRET"}, author="ann")
        await store.put("rules", "default", {}, author="bob")

        async def ask(*options: str) -> list[dict[str, object]]:
            assert await pdd("audit", "--redis", url, "--json", *options) == 0
            return list(json.loads(capsys.readouterr().out))

        found = await ask()
        assert [(one["author"], one["kind"], one["name"]) for one in found] == [
            ("bob", "rules", "default"),
            ("ann", "key", "k1"),
            ("eve", "rules", "old"),
        ]
        assert found[0].keys() == entry.keys()
        assert "SECRET" not in repr(found)
        assert [one["author"] for one in await ask("--since", "1h")] == ["bob", "ann"]
        assert [one["author"] for one in await ask("--limit", "1")] == ["bob"]
