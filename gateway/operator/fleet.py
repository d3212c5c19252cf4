"""What an operator changes of the fleet while it runs: the topology document, read, edited and put back."""

from collections.abc import Collection, Mapping
from typing import Any

from gateway.config.document_store import Document, DocumentStore
from gateway.config.settings import Settings
from gateway.fleet.topology import FLEET, TOPOLOGY, overlay, read_topology

TopologyBody = dict[str, Any]


async def read_body(store: DocumentStore) -> tuple[TopologyBody, int]:
    """Return the present document and its version; an empty one where there is none."""
    document = await store.get(TOPOLOGY, FLEET)
    return ({}, 0) if document is None else (document.value, document.version)


def drain(body: Mapping[str, Any], ids: Collection[str]) -> TopologyBody:
    """Give engines no new requests; running ones go on to their end."""
    return {**body, "draining": sorted({*body.get("draining", ()), *ids})}


def undrain(body: Mapping[str, Any], ids: Collection[str]) -> TopologyBody:
    """Give engines requests again."""
    return {**body, "draining": [id_ for id_ in body.get("draining", ()) if id_ not in ids]}


async def put_body(
    store: DocumentStore, settings: Settings | None, body: TopologyBody, author: str, version: int
) -> Document:
    """Check a body, over the configuration where one is known, and write it.

    Raises BadSettings, Conflict where the document is no more at ``version``, and ``AWAY``.
    """
    topology = read_topology(body)
    if settings is not None:
        overlay(settings, topology)
    return await store.put(TOPOLOGY, FLEET, body, author=author, expected_version=version)
