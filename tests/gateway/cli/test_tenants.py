"""``pdd tenant``, ``pdd key`` and ``pdd usage`` against a real server and a mirror that stands for a gateway."""

import argparse
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from gateway.auth.keys import parse_key
from gateway.auth.tenants import KEY_KIND, TENANT_KIND, BadKey, TenantBook, TenantDisabled
from gateway.cli.writing import read_duration_s
from gateway.config.live import LiveDocuments
from gateway.limits.usage import UsageMeter, Use
from gateway.redis.client import SharedRedis
from tests.gateway.cli.fleet import pdd
from tests.valkey import open_documents, run_valkey

pytestmark = pytest.mark.slow
SECRET = "0123456789abcdef0123"


@pytest.fixture
async def url(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[str, None]:
    """A server, which the commands find by the environment, as they find the secret."""
    async with run_valkey() as url:
        monkeypatch.setenv("REDIS_URL", url)
        monkeypatch.setenv("PDD_SECRET", SECRET)
        yield url


@asynccontextmanager
async def run_gateway(url: str) -> AsyncIterator[TenantBook]:
    """Know tenants and keys as a gateway process does."""
    async with SharedRedis(url) as shared:
        live, book = LiveDocuments(shared, interval_s=3600.0), TenantBook(SECRET.encode())
        live.follow(book.apply, TENANT_KIND, KEY_KIND)
        try:
            await live.start()
            yield book
        finally:
            await live.aclose()


async def make_key(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Create a key of tenant acme, and return it."""
    assert await pdd("key", "create", "--tenant", "acme", "--wait", *options) == 0
    return capsys.readouterr().out.splitlines()[-1]


async def test_a_key_lives_from_creation_to_revocation(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A key opens as soon as it is created and nothing once it is revoked; no other key is touched."""
    async with run_gateway(url) as book:
        assert await pdd("tenant", "add", "acme", "--note", "the first") == 0
        key, other = await make_key(capsys), await make_key(capsys, "--expires", "90d")
        assert (book.find(key), book.find(other)) == ("acme", "acme")
        assert await pdd("key", "revoke", key, "--wait") == 0
        with pytest.raises(BadKey, match="revoked"):
            book.find(key)
        assert book.find(other) == "acme"
        capsys.readouterr()
        assert await pdd("key", "list", "--tenant", "acme") == 0
        lines = sorted(capsys.readouterr().out.splitlines(), key=lambda line: "revoked" in line)
        assert "good" in lines[0] and "expires 20" in lines[0]
        assert "revoked" in lines[1] and "never expires" in lines[1]
        assert not any(secret in line for line in lines for secret in (key, other))
        assert await pdd("key", "list", "--tenant", "other") == 0 and capsys.readouterr().out == ""


async def test_a_tenant_is_disabled_and_enabled(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """While a tenant is disabled its keys open nothing."""
    async with run_gateway(url) as book:
        await pdd("tenant", "add", "acme", "--note", "the first")
        key = await make_key(capsys)
        assert await pdd("tenant", "disable", "acme", "--wait") == 0
        with pytest.raises(TenantDisabled):
            book.find(key)
        capsys.readouterr()
        assert await pdd("tenant", "list") == 0
        assert capsys.readouterr().out == "acme  disabled  version 2  the first\n"
        assert await pdd("tenant", "enable", "acme", "--wait") == 0
        assert book.find(key) == "acme"


async def test_a_new_key_is_all_that_stdout_gets(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is said of a key's creation is on stderr, so that a script can take the key."""
    await pdd("tenant", "add", "acme")
    capsys.readouterr()
    assert await pdd("key", "create", "--tenant", "acme") == 0
    said = capsys.readouterr()
    assert parse_key(said.out.strip()) is not None and said.out.count("\n") == 1
    assert said.err.startswith("key ") and "version 1" in said.err and said.out.strip() not in said.err


@pytest.mark.parametrize(
    "name", ["", "default", "a b", "a\tb", "ac\u200bme", "\u202eemca", ".x", "x" * 101, "a/b", "a\n"]
)
async def test_names_of_tenants_are_plain(url: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A tenant's name stands in logs, labels and tables: what looks like another one, or breaks them, is refused."""
    assert await pdd("tenant", "add", name, "--wait", "0") in (1, 2)
    assert await pdd("tenant", "list") == 0 and capsys.readouterr().out == ""


async def test_no_key_is_in_redis(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Redis, its history and its audit hold no key."""
    await pdd("tenant", "add", "acme")
    key = await make_key(capsys)
    async with open_documents(url) as store:
        documents = [*await store.all_of(KEY_KIND), *await store.history(KEY_KIND, key.split("_")[1])]
        dump = b"".join(
            [await store.redis.commands.dump(name) or b"" async for name in store.redis.commands.scan_iter()]
        )
    random_part = key.rsplit("_", 1)[1]
    assert len(documents) == 2 and not any(random_part in document.body for document in documents)
    assert random_part.encode() not in dump


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("key", "create", "--tenant", "nobody"), "pdd tenant add nobody"),
        (("key", "revoke", "abcdefgh"), "no such key"),
        (("tenant", "disable", "nobody"), "does not exist"),
        (("tenant", "add", "acme"), "exists"),
        (("tenant", "disable", "acme", "--expect-version", "7"), "is at version 1"),
    ],
)
async def test_what_cannot_be_done_changes_nothing(
    url: str, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong name or version is said, with status 1, and nothing is stored."""
    await pdd("tenant", "add", "acme")
    async with open_documents(url) as store:
        before = (await store.read((TENANT_KIND, KEY_KIND))).revision
        assert await pdd(*arguments) == 1
        assert message in capsys.readouterr().err
        assert (await store.read((TENANT_KIND, KEY_KIND))).revision == before


async def test_without_the_secret_no_key_is_made(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key that no gateway could check is not made."""
    monkeypatch.delenv("PDD_SECRET")
    await pdd("tenant", "add", "acme")
    assert await pdd("key", "create", "--tenant", "acme") == 1
    assert "PDD_SECRET" in capsys.readouterr().err


async def test_usage(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What a gateway counted is shown by tenant and model, as JSON and as a table."""
    await pdd("tenant", "add", "acme")
    async with SharedRedis(url) as shared:
        usage = UsageMeter(shared, CollectorRegistry())
        usage.note("acme", "m", Use(2, 100, 10, 1, 2, 3, cost=0.5))
        usage.note("default", "m", Use(1))
        await usage.aclose()
    capsys.readouterr()
    assert await pdd("usage", "--since", "7d", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["acme"]["m"]["md_tokens"], found["acme"]["m"]["cost"], list(found)) == (3, 0.5, ["acme", "default"])
    assert await pdd("usage", "--tenant", "acme") == 0
    table = capsys.readouterr().out
    assert "0.5000" in table and "default" not in table


def test_durations() -> None:
    """Durations are a number and a unit, and nothing else."""
    assert [read_duration_s(text) for text in ("90s", "30m", "12h", "7d")] == [90, 1800, 43_200, 604_800]
    for wrong in ("", "7", "0d", "-1d", "7w", "1.5h", " 1h"):
        with pytest.raises(argparse.ArgumentTypeError, match="no duration"):
            read_duration_s(wrong)
