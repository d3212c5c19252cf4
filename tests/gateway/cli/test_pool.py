"""``pdd pool`` against a real server."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config.document_store import Ack, DocumentStore
from gateway.fleet.topology import FLEET, TOPOLOGY
from tests.gateway.cli.fleet import pdd
from tests.valkey import open_documents, run_valkey

pytestmark = pytest.mark.slow

MD2 = {"id": "md2", "role": "MD", "model": "m", "region": "b", "url": "http://md2.invalid"}
CONFIG: dict[str, Any] = {
    "models": [{"name": "m", "path": "/nowhere", "kv_bytes_per_token": 1}],
    "engines": [
        {"id": "p1", "role": "P", "model": "m", "region": "a", "url": "http://p1.invalid"},
        {"id": "md1", "role": "MD", "model": "m", "region": "b", "url": "http://md1.invalid"},
    ],
    "links": [{"source": "a", "dest": "b", "bridge": "http://bridge.invalid"}],
}


@pytest.fixture
async def store(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[DocumentStore, None]:
    """The documents of a server, which the commands find by the environment."""
    async with run_valkey() as url:
        monkeypatch.setenv("REDIS_URL", url)
        async with open_documents(url) as store:
            yield store


async def write(folder: Path, name: str, value: Any) -> Path:
    """Write a YAML file."""
    path = folder / name
    await asyncio.to_thread(path.write_text, yaml.safe_dump(value))
    return path


async def test_add_drain_undrain_remove(
    store: DocumentStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each step is one version of the document; the list shows configuration and changes together."""
    config = await write(tmp_path, "gateway.yaml", CONFIG)
    new = await write(tmp_path, "new.yaml", {"engines": [MD2]})
    for arguments in (["add", new], ["drain", "md1", "md2"], ["undrain", "md1"], ["remove", "a->b"], ["remove", "md2"]):
        assert await pdd("pool", *arguments, "--config", config, "--wait") == 0
    said = capsys.readouterr().out
    assert said.count("no gateway process is running") == 5
    document = await store.get(TOPOLOGY, FLEET)
    assert document is not None and document.version == 5
    assert document.value == {"engines": {"md2": None}, "links": {"a->b": None}, "draining": []}
    bodies = [one.value for one in await store.history(TOPOLOGY, FLEET)]
    assert [body["draining"] for body in reversed(bodies)] == [[], ["md1", "md2"], ["md2"], ["md2"], []]
    await pdd("pool", "drain", "md1")
    assert await pdd("pool", "list", "--config", config) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "p1  P  m  a  http://p1.invalid",
        "md1  MD  m  b  http://md1.invalid  (drains)",
        "md2  (removed)",
        "a->b  (removed)",
    ]
    assert await pdd("pool", "list") == 0
    assert capsys.readouterr().out.splitlines() == ["md2  (removed)", "md1  (drains)", "a->b  (removed)"]


async def test_a_second_link_has_a_name(
    store: DocumentStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A link for one model is added beside that for all, and removed by its name."""
    config = await write(tmp_path, "gateway.yaml", CONFIG)
    second = CONFIG["links"][0] | {"name": "a->b/second", "models": ["m"]}
    new = await write(tmp_path, "new.yaml", {"links": [second]})
    assert await pdd("pool", "add", new, "--config", config) == 0
    capsys.readouterr()
    assert await pdd("pool", "list", "--config", config) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["a->b", "a->b/second  (added)"]
    assert await pdd("pool", "remove", "a->b/second", "--config", config) == 0
    document = await store.get(TOPOLOGY, FLEET)
    assert document is not None
    assert document.value == {"engines": {}, "links": {"a->b/second": None}, "draining": []}


async def test_what_does_not_fit_changes_nothing(
    store: DocumentStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Engines of unknown models, links from nowhere, wrong fields and files are refused with what is wrong."""
    config = await write(tmp_path, "gateway.yaml", CONFIG)
    for value, reason in [
        ({"engines": [MD2 | {"model": "x"}]}, "'x' is not in models"),
        ({"engines": [MD2 | {"rolle": "MD"}]}, "unknown field `rolle`"),
        ({"engines": [MD2 | {"role": "D"}]}, "'D'; it may be MD, P, RLD"),
        ({"links": [{"source": "a", "dest": "c", "bridge": "http://x.invalid"}]}, "no engine is in region 'c'"),
        ({"engine": []}, "the file must hold"),
        ({"engines": [{}]}, "each engine needs an id"),
        ([], "the file must hold"),
    ]:
        assert await pdd("pool", "add", await write(tmp_path, "new.yaml", value), "--config", config) == 1
        assert reason in capsys.readouterr().err
    for arguments, reason in [
        (["drain", "nobody"], "there is no engine 'nobody'"),
        (["remove", "p1"], "no engine is in region 'a'"),
        (["remove", "p1", "md1", "a->b"], "none is left"),
    ]:
        assert await pdd("pool", *arguments, "--config", config) == 1
        assert reason in capsys.readouterr().err
    assert await pdd("pool", "drain", "md1", "--expect-version", "3") == 1
    assert await store.get(TOPOLOGY, FLEET) is None


async def test_ids_are_those_that_gateways_know(store: DocumentStore, capsys: pytest.CaptureFixture[str]) -> None:
    """An id that no live gateway tells of is refused by name and changes nothing; what nobody can check is said."""
    assert await pdd("pool", "drain", "md1") == 0
    assert "ids are not checked" in capsys.readouterr().err
    await store.acknowledge(Ack("p", "h", 1, "", 0, (), ("p1", "md1", "a->b")))
    for verb, name, kind in (
        ("drain", "nosuch", "engine"),
        ("undrain", "nosuch", "engine"),
        ("remove", "nosuch", "engine"),
        ("remove", "a->c", "link"),
    ):
        assert await pdd("pool", verb, name, "--wait", "0") == 1
        assert f"there is no {kind} '{name}'; there are a->b, md1, p1" in capsys.readouterr().err
    assert await pdd("pool", "drain", "p1", "--wait", "0") == 0
    assert await pdd("pool", "undrain", "md1", "--wait", "0") == 0
    document = await store.get(TOPOLOGY, FLEET)
    assert document is not None and document.value["draining"] == ["p1"]


async def test_a_mistake_of_before_can_be_taken_back(store: DocumentStore) -> None:
    """What drains though there is no such engine may be undrained, whatever gateways know."""
    await store.put(TOPOLOGY, FLEET, {"draining": ["nosuch"]}, author="an older pdd")
    await store.acknowledge(Ack("p", "h", 1, "", 0, (), ("p1",)))
    assert await pdd("pool", "undrain", "nosuch", "--wait", "0") == 0
