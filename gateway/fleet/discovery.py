"""Finds engines by the labels of their pods: lists them at a Kubernetes API, then watches what changes.

A pod with the labels ``pdd.role`` and ``pdd.model`` (an annotation where the name is no label) is an engine as
soon as it has an address; the gateway uses it once it is healthy. One that is being deleted gets no new requests. While
the API is away, what was found last stays.
"""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from gateway.config.fleet_settings import BadSettings, DiscoverySettings, EngineSettings
from gateway.tasks import end_task

log = logging.getLogger(__name__)

ROLE = "pdd.role"
MODEL = "pdd.model"
PORT = "pdd.port"
USUAL_PORT = "8000"
WATCH_S = 300
"""The API ends a watch after this time, and it is begun again."""
CONTROL_TIMEOUT_S = 10.0
BACKOFF_FIRST_S = 1.0
BACKOFF_MOST_S = 30.0


class _Meta(msgspec.Struct):
    name: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    deletion_timestamp: str | None = msgspec.field(name="deletionTimestamp", default=None)
    resource_version: str = msgspec.field(name="resourceVersion", default="")


class _Status(msgspec.Struct):
    pod_ip: str = msgspec.field(name="podIP", default="")
    phase: str = ""


class Pod(msgspec.Struct):
    """What is read of a pod."""

    metadata: _Meta = msgspec.field(default_factory=_Meta)
    status: _Status = msgspec.field(default_factory=_Status)


class _PodList(msgspec.Struct):
    metadata: _Meta
    items: list[Pod]


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


@dataclass(frozen=True, slots=True)
class Found:
    """The engines of one cluster by id, and those among them that are on their way out."""

    engines: Mapping[str, EngineSettings]
    draining: frozenset[str]


class ClusterError(Exception):
    """The Kubernetes API does not answer, or not as it should; the message says what it said."""


class PodWatch:
    """Tells ``on_change`` of every change. Raises BadSettings where files or addresses are missing."""

    def __init__(self, settings: DiscoverySettings, models: frozenset[str], on_change: Callable[[Found], None]) -> None:
        self._settings = settings
        self._models = models
        self._on_change = on_change
        self._namespace = settings.find_namespace()
        self._pods: dict[str, Pod] = {}
        self._refused: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None
        try:
            verify = ssl.create_default_context(cafile=settings.ca_file) if settings.ca_file else True
        except OSError as error:
            raise BadSettings(f"discovery[{settings.region}].ca_file: {error.strerror}") from None
        self._client = httpx.AsyncClient(base_url=settings.find_api(), verify=verify, timeout=CONTROL_TIMEOUT_S)

    async def start(self) -> None:
        """Look once, then go on in the background; an API that is away is no error."""
        try:
            version = await self._list()
        except ClusterError as error:
            log.warning("no engines are found in %s yet: %s", self._settings.region, error)
            version = ""
        self._task = asyncio.create_task(self._run(version))

    async def aclose(self) -> None:
        await end_task(self._task)
        await self._client.aclose()

    async def _run(self, since: str) -> None:
        pause_s = BACKOFF_FIRST_S
        while True:
            try:
                since = since or await self._list()
                async for version in self._watch(since):
                    since, pause_s = version, BACKOFF_FIRST_S
            except ClusterError as error:
                log.warning("engines in %s: %s; what was found stays", self._settings.region, error)
                since = ""
                await asyncio.sleep(pause_s)
                pause_s = min(BACKOFF_MOST_S, pause_s * 2)

    async def _list(self) -> str:
        """Read all pods; return the version from which to watch. Raises ClusterError."""
        try:
            response = await self._client.get(self._path, params=self._query, headers=await self._headers())
            if response.status_code != 200:
                raise ClusterError(f"the API answered {response.status_code}")
            found = msgspec.json.decode(response.content, type=_PodList)
        except (httpx.HTTPError, msgspec.DecodeError, RecursionError) as error:
            raise ClusterError(_word(error)) from None
        self._pods = {pod.metadata.name: pod for pod in found.items}
        self._tell()
        return found.metadata.resource_version

    async def _watch(self, version: str) -> AsyncIterator[str]:
        """Apply changes, and yield the version that each leads to, to the watch's end. Raises ClusterError."""
        query = self._query | {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(WATCH_S)}
        timeout = httpx.Timeout(CONTROL_TIMEOUT_S, read=WATCH_S + CONTROL_TIMEOUT_S)
        request = self._client.stream("GET", self._path, params=query, headers=await self._headers(), timeout=timeout)
        try:
            async with request as response:
                if response.status_code != 200:
                    raise ClusterError(f"the API answered a watch with {response.status_code}")
                async for line in response.aiter_lines():
                    if line:
                        yield self._apply(msgspec.json.decode(line, type=_Event))
        except (httpx.HTTPError, msgspec.DecodeError, RecursionError) as error:
            raise ClusterError(_word(error)) from None

    def _apply(self, event: _Event) -> str:
        if event.type == "ERROR":
            raise ClusterError("the watch is out of date")
        pod = msgspec.json.decode(event.object, type=Pod)
        if event.type == "DELETED":
            self._pods.pop(pod.metadata.name, None)
        elif event.type != "BOOKMARK":
            self._pods[pod.metadata.name] = pod
        if event.type != "BOOKMARK":
            self._tell()
        return pod.metadata.resource_version

    def _tell(self) -> None:
        engines: dict[str, EngineSettings] = {}
        draining: set[str] = set()
        refused: dict[str, str] = {}
        for name, pod in self._pods.items():
            if not pod.status.pod_ip or pod.status.phase in ("Succeeded", "Failed"):
                continue
            try:
                engine = read_pod(pod, self._settings, self._models)
            except BadSettings as error:
                refused[name] = str(error)
                continue
            engines[engine.id] = engine
            if pod.metadata.deletion_timestamp is not None:
                draining.add(engine.id)
        for name, reason in refused.items():
            if self._refused.get(name) != reason:
                log.warning("pod %s is no engine: %s", name, reason)
        self._refused = refused
        self._on_change(Found(engines, frozenset(draining)))

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self._namespace}/pods"

    @property
    def _query(self) -> dict[str, str]:
        return {"labelSelector": self._settings.selector}

    async def _headers(self) -> dict[str, str]:
        """Make the headers anew each time: tokens are exchanged while the gateway runs. Raises ClusterError."""
        if self._settings.token_file is None:
            return {}
        try:
            token = await asyncio.to_thread(Path(self._settings.token_file).read_text, encoding="ascii")
            return {"Authorization": f"Bearer {token.strip()}"}
        except (OSError, UnicodeDecodeError) as error:
            raise ClusterError(f"token_file cannot be read: {type(error).__name__}") from None


def read_pod(pod: Pod, settings: DiscoverySettings, models: frozenset[str]) -> EngineSettings:
    """Return a pod's engine, named ``REGION/POD``. Raises BadSettings that says what does not fit."""
    meta = pod.metadata
    said = meta.annotations | meta.labels
    model = said.get(MODEL, "")
    if model not in models:
        raise BadSettings(f"{MODEL}: {model!r} is not in models")
    address = f"[{pod.status.pod_ip}]" if ":" in pod.status.pod_ip else pod.status.pod_ip
    return settings.make_engine(
        id=f"{settings.region}/{meta.name}",
        role=said.get(ROLE, ""),
        model=model,
        url=f"http://{address}:{said.get(PORT, USUAL_PORT)}",
    )


def _word(error: Exception) -> str:
    return f"the API does not answer ({type(error).__name__})"
