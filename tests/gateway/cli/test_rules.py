"""``pdd rules`` against a real server, with mirrors that stand for gateway processes."""

import asyncio
import stat
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gateway.cli.rules import follow_changes
from gateway.config.document_store import Ack, DocumentStore, Refusal
from gateway.config.live import LiveDocuments
from gateway.config.rulebook import RULES, RuleBook
from gateway.redis.client import SharedRedis
from policies.rules import Rules
from tests.gateway.cli.fleet import pdd
from tests.valkey import open_documents, run_valkey

pytestmark = pytest.mark.slow


@pytest.fixture
async def url(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[str, None]:
    """A server, which the commands find by the environment."""
    async with run_valkey() as url:
        monkeypatch.setenv("REDIS_URL", url)
        yield url


@pytest.fixture
async def store(url: str) -> AsyncGenerator[DocumentStore, None]:
    """The documents."""
    async with open_documents(url) as store:
        yield store


@asynccontextmanager
async def run_gateway(url: str, **times: Any) -> AsyncIterator[RuleBook]:
    """Follow the rules as a gateway process does."""
    async with SharedRedis(url) as shared:
        live, book = LiveDocuments(shared, **times), RuleBook(Rules(), known=False)
        live.follow(book.apply, RULES)
        try:
            await live.start()
            yield book
        finally:
            await live.aclose()


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Writes a rules file."""

    async def write(value: Any) -> Path:
        path = tmp_path / "rules.yaml"
        await asyncio.to_thread(path.write_text, yaml.safe_dump(value))
        return path

    return write


async def test_set_waits_for_every_process(url: str, write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """`set --wait` returns when both processes have the rules, and names them."""
    async with run_gateway(url) as one, run_gateway(url) as other:
        path = await write({"direct_classic": True})
        assert await pdd("rules", "set", path, "--wait") == 0
        assert one.of("any").direct_classic and other.of("any").direct_classic
        said = capsys.readouterr().out
        assert said.splitlines()[0] == "rules default set: version 1, revision 1"
        assert said.count("applied by process") == 2


async def test_wait_names_who_has_not(
    url: str, store: DocumentStore, write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process that hangs is named when the time is over, and the exit status says so; the change is stored."""
    async with run_gateway(url) as book:
        await store.acknowledge(Ack("hung", "h", 1, "", 0))
        path = await write({"direct_classic": True})
        assert await pdd("rules", "set", path, "--wait", "0.3") == 1
        told = capsys.readouterr()
        assert book.of("any").direct_classic
        assert "not applied by process 1 on h: it is at revision 0" in told.err and "applied by process" in told.out


async def test_rules_for_nobody_are_refused(
    url: str, store: DocumentStore, write: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant's name that nobody has is an error that says how to make it, and nothing is stored."""
    monkeypatch.setenv("EDITOR", "true")
    path = await write({"regions": ["a"]})
    for verb in (("set", path), ("edit",)):
        assert await pdd("rules", *verb, "--tenant", "typo") == 1
        assert "tenant typo does not exist: `pdd tenant add typo` makes it" in capsys.readouterr().err
    assert await store.all_of(RULES) == []
    assert await pdd("rules", "set", path, "--tenant", "soon", "--anyway") == 0
    await pdd("tenant", "add", "acme")
    assert await pdd("rules", "set", path, "--tenant", "acme") == 0


async def test_a_change_waits_for_those_that_live(
    url: str, store: DocumentStore, write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without being told a change waits for the processes that live; with none it ends at once, and says nothing."""
    path = await write({"regions": ["a"]})
    assert await pdd("rules", "set", path) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    async with run_gateway(url), run_gateway(url):
        assert await pdd("rules", "set", path) == 0
        assert capsys.readouterr().out.count("applied by process") == 2
    await store.acknowledge(Ack("hung", "h", 1, "", 0))
    assert await pdd("rules", "set", path, "--wait", "0") == 0
    assert await pdd("rules", "set", path, "--wait", "0.1") == 1
    assert "not applied by process 1 on h" in capsys.readouterr().err


async def test_invalid_rules_change_nothing(
    url: str, store: DocumentStore, write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is not valid, alone or together with the other documents, is refused with its path and not stored."""
    await pdd("tenant", "add", "acme")
    assert await pdd("rules", "set", await write({"relay": {"transfer_retry_backoff_s": 2.0}}), "--tenant", "acme") == 0
    for tenant, value, path in [
        ("default", {"handof": {}}, "default: handof"),
        ("acme", {"limits": {"concurrent": 0}}, "acme: limits.concurrent"),
        ("default", {"relay": {"transfer_retry_backoff_max_s": 1.0, "transfer_retry_backoff_s": 0.5}}, "acme: relay"),
        ("default", [], "default: Expected"),
    ]:
        for verb in ("set", "validate"):
            assert await pdd("rules", verb, await write(value), "--tenant", tenant) == 1
            assert f"refused: {path}" in capsys.readouterr().err
    assert [one.version for one in await store.all_of(RULES)] == [1]


async def test_expected_version(url: str, write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A change that expects another version is refused and says which one there is."""
    path = await write({})
    assert await pdd("rules", "set", path, "--expect-version", "0") == 0
    assert await pdd("rules", "set", path, "--expect-version", "0") == 1
    assert "rules default is at version 1" in capsys.readouterr().err
    assert await pdd("rules", "set", path, "--expect-version", "1") == 0


async def test_history_diff_and_rollback(
    url: str, store: DocumentStore, write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Versions are listed with their authors, compared, and put in force again as new ones."""
    for number, author in [(3, "ann"), (4, "bob")]:
        path = await write({"handoff": {"max_rounds": number}})
        assert await pdd("rules", "set", path, "--author", author) == 0
    assert await pdd("rules", "history") == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[0] + line.split()[-1] for line in lines] == ["2bob", "1ann"]
    assert await pdd("rules", "diff") == 0
    assert {"-  max_rounds: 3", "+  max_rounds: 4"} <= set(capsys.readouterr().out.splitlines())
    assert await pdd("rules", "diff", path) == 0
    assert capsys.readouterr().out == "no difference\n"
    assert await pdd("rules", "rollback", "--author", "eve") == 0
    document = await store.get(RULES, "default")
    assert document is not None
    assert (document.version, document.value, document.author) == (3, {"handoff": {"max_rounds": 3}}, "eve")
    assert await pdd("rules", "rollback", "--to", "2") == 0
    assert await pdd("rules", "rollback", "--to", "77") == 1
    assert "holds no version 77" in capsys.readouterr().err


async def test_get_list_delete(url: str, write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Documents are printed as files, also with all that lies under them, listed, and deleted."""
    assert await pdd("rules", "get") == 1
    assert "no rule document default" in capsys.readouterr().err
    await pdd("rules", "set", await write({"regions": ["a"]}))
    await pdd("tenant", "add", "acme")
    await pdd("rules", "set", await write({"direct_classic": True}), "--tenant", "acme")
    capsys.readouterr()
    assert await pdd("rules", "get", "--tenant", "acme") == 0
    assert yaml.safe_load(capsys.readouterr().out) == {"direct_classic": True}
    assert await pdd("rules", "get", "--tenant", "acme", "--effective") == 0
    effective = yaml.safe_load(capsys.readouterr().out)
    assert effective["regions"] == ["a"] and effective["direct_classic"] and effective["slo"]["ttft_s"] == 5.0
    assert await pdd("rules", "list") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["acme", "default"]
    assert await pdd("rules", "delete", "--tenant", "acme") == 0
    assert await pdd("rules", "get", "--tenant", "acme") == 1


async def test_edit(
    url: str, store: DocumentStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Any
) -> None:
    """What the editor leaves is put in force, unless somebody else was quicker, or nothing was changed."""
    await pdd("rules", "set", await write({"direct_classic": True}))
    editor = tmp_path / "editor"

    def use(script: str) -> None:
        editor.write_text(f"#!/bin/sh\n{script}\n")
        editor.chmod(editor.stat().st_mode | stat.S_IXUSR)

    monkeypatch.setenv("EDITOR", str(editor))
    monkeypatch.delenv("VISUAL", raising=False)
    for script, status, version in [
        ("true", 0, 1),
        ("echo 'direct_classic: false' > $1", 0, 2),
        ("echo 'direct_classic: 7' > $1", 1, 2),
        ("exit 3", 1, 2),
    ]:
        await asyncio.to_thread(use, script)
        assert await pdd("rules", "edit") == status
        (document,) = await store.history(RULES, "default", 1)
        assert document.version == version
    assert document.value == {"direct_classic": False}


async def test_schema_and_validation_alone(
    monkeypatch: pytest.MonkeyPatch, write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without Redis the schema is printed and a file is checked by itself; anything else says what is missing."""
    monkeypatch.delenv("REDIS_URL", raising=False)
    assert await pdd("rules", "schema") == 0
    assert "RuleDocument" in msgspec.json.decode(capsys.readouterr().out)["$defs"]
    path = await write({"regions": ["a"]})
    assert await pdd("rules", "validate", path) == await pdd("rules", "check", path) == 0
    assert await pdd("rules", "validate", await write({"region": "a"})) == 1
    assert "default: region" in capsys.readouterr().err
    assert await pdd("rules", "set", path) == 1
    assert "say where Redis is" in capsys.readouterr().err
    assert await pdd("rules", "validate", path.parent / "absent.yaml") == 2


async def test_unreachable_redis_is_said(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A Redis that is not there is an error, not a traceback."""
    assert await pdd("rules", "set", await write({}), "--redis", "redis://127.0.0.1:1") == 1
    assert "pdd rules: Redis (--redis, REDIS_URL or redis_url): " in capsys.readouterr().err
    assert await pdd("rules", "set", await write({}), "--redis", "nonsense") == 1


async def test_watch(url: str, store: DocumentStore) -> None:
    """Every change of rules is a line as it happens, and a refusal one; what was there before is not told."""
    await store.put(RULES, "acme", {}, author="ann")
    lines = follow_changes(store, await store.read([RULES]), pause_s=0.01)
    async with asyncio.timeout(10), aclosing(lines):
        await store.put("tenant", "acme", {}, author="ann")
        document = await store.put(RULES, "bob", {}, author="ann")
        assert (await anext(lines)).endswith("bob set, version 1, by ann")
        refusal = Refusal((RULES,), "bob", "no", document.revision)
        await store.acknowledge(Ack("p", "h", 1, "", 0, (refusal,)))
        assert await anext(lines) == "refused by process 1 on h: bob: no"
        await store.delete(RULES, "bob", author="eve")
        assert (await anext(lines)).endswith("bob deleted, version 2, by eve")


async def test_trace_under_other_rules(
    url: str, write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The requests whose plan would change are named with both plans; a bad line of the trace is named too."""
    engines = [
        {"id": name, "role": role, "model": "m", "region": region, "url": "http://x.invalid"}
        for name, role, region in [("p1", "P", "a"), ("rld1", "RLD", "a"), ("md1", "MD", "b")]
    ]
    config = {
        "models": [{"name": "m", "path": "/nowhere", "kv_bytes_per_token": 100_000}],
        "engines": engines,
        "links": [{"source": "a", "dest": "b", "bridge": "http://x.invalid"}],
    }
    path = tmp_path / "gateway.yaml"
    trace = tmp_path / "trace.jsonl"
    rows: list[dict[str, Any]] = [
        {"prompt_tokens": 20_000, "hits": {"p1": 0, "md1": 0}},
        {"prompt_tokens": 20_000, "hits": {"p1": 0, "md1": 0}, "tenant": "acme"},
        {"prompt_tokens": 100, "features": {"seeded": True}},
    ]
    await asyncio.to_thread(path.write_text, yaml.safe_dump(config))
    await asyncio.to_thread(trace.write_bytes, b"\n".join(map(msgspec.json.encode, rows)))
    new = await write({"pipelines": ["direct"]})
    assert await pdd("rules", "test", new, "--requests", trace, "--config", path, "--tenant", "acme") == 0
    lines, relay = capsys.readouterr().out.splitlines(), "relay p1 -> rld1 -> md1 (wan_slow)"
    assert lines == [
        f"trace.jsonl:2  acme, 20000 tokens: {relay}  =>  direct p1 -> md1 (relay_not_allowed)",
        "1 of 3 requests would get another plan",
    ]
    await asyncio.to_thread(trace.write_text, '{"prompt_tokens": "many"}')
    assert await pdd("rules", "test", new, "--requests", trace, "--config", path) == 2
    assert "trace.jsonl:1" in capsys.readouterr().err
    assert await pdd("rules", "test", new, "--requests", trace) == 1
