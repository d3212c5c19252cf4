"""Whether engines read chats as the gateway does: asked of each new engine process, shape by shape.

A shape is a small conversation that stands for all those put together alike (``gateway.text.shapes``). The prompts that
both make of it are compared id by id. Where they differ, or where the gateway has no template, ``Readings`` lets an
engine read a request, if the model's ``reader`` setting allows it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

from backends.base import ChatReader, find_chat_reader
from backends.errors import BackendError, EngineRejected
from gateway.errors import GatewayError, bad_field, reason_of
from gateway.fleet.pools import Instance, Pools
from gateway.tasks import end_task
from gateway.text.conversation import as_engines_take
from gateway.text.model import ServedModel
from gateway.text.shapes import CHECKED, features_of
from gateway.text.template import TemplateRejected

log = logging.getLogger(__name__)

Reader = Literal["local", "engine", "auto"]
CANNOT_TELL = frozenset({404, 405, 501})
ASK_TIMEOUT_S = 30.0


class Readings:
    """What is known of how engines read chats, and the way to let one read."""

    def __init__(self, models: Mapping[str, ServedModel], readers: Mapping[str, Reader], pools: Pools) -> None:
        """``readers``: who reads each model's chats."""
        self._models = models
        self._readers = readers
        self._pools = pools
        self._differing: dict[str, frozenset[str]] = {}
        """Of each instance that was asked, the shapes that it reads in another way."""
        self._news: asyncio.Queue[Instance] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def notice(self, instance: Instance) -> None:
        """Another engine process answers for this instance: ask it."""
        self._differing.pop(instance.spec.id, None)
        self._news.put_nowait(instance)

    async def start(self) -> None:
        """Ask in the background from here on."""
        self._task = asyncio.create_task(self._run())

    async def aclose(self) -> None:
        await end_task(self._task)

    async def settled(self) -> None:
        """Wait until every process that was noticed has been asked."""
        await self._news.join()

    async def ask_all(self) -> None:
        """Ask every instance that is up now, one after the other."""
        now_s = self._pools.clock()
        for instance in self._pools.instances:
            if instance.usable(now_s):
                await self._try(instance)

    async def _run(self) -> None:
        while True:
            instance = await self._news.get()
            try:
                await self._try(instance)
            finally:
                self._news.task_done()

    async def _try(self, instance: Instance) -> None:
        try:
            await self._check(instance)
        except (BackendError, TimeoutError) as error:
            log.warning("%s was not asked how it reads chats: %s", instance.spec.id, reason_of(error))

    async def _check(self, instance: Instance) -> None:
        model, reader = self._models.get(instance.spec.model), find_chat_reader(instance.engine)
        if model is None or reader is None or not model.encodes:
            return
        differing = set()
        for shape, chat in CHECKED.items():
            try:
                theirs = await self._read(reader, model.name, chat)
            except EngineRejected as error:
                if error.status in CANNOT_TELL or shape == next(iter(CHECKED)):
                    log.info("%s does not tell how it reads chats", instance.spec.id)
                    return
                theirs = None
            if theirs != read_here(model, chat):
                differing.add(shape)
        self._differing[instance.spec.id] = frozenset(differing)
        if differing:
            log.warning("%s reads chats in another way: %s", instance.spec.id, ", ".join(sorted(differing)))

    @staticmethod
    async def _read(reader: ChatReader, model: str, chat: Mapping[str, Any]) -> list[int]:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            return await reader.read_chat(model, {**chat, "messages": as_engines_take(chat["messages"])})

    def differing(self, model: str) -> dict[str, frozenset[str]]:
        """Return the shapes that a model's instances read in another way, by instance, where there are any."""
        known = {one.spec.id: self._differing.get(one.spec.id) for one in self._pools.of_model(model)}
        return {id_: shapes for id_, shapes in known.items() if shapes}

    def list_differing(self) -> list[str]:
        """Say for the operator which instances read chats in another way."""
        return [
            f"{name}: {id_} makes other prompts of chats than the gateway: {', '.join(sorted(shapes))}"
            f" (reader: {self._readers[name]})"
            for name in self._models
            for id_, shapes in self.differing(name).items()
        ]

    def is_for_engine(self, name: str, chat: Mapping[str, Any]) -> bool:
        """Say whether an engine is to read this chat."""
        reader, model = self._readers[name], self._models[name]
        if reader != "auto":
            return reader == "engine"
        if model.template is None:
            return self._find_reader(name, lambda region: True) is not None
        differing = self.differing(name)
        if not differing:
            return False
        features = features_of(chat)
        shapes = {shape for found in differing.values() for shape in found}
        return any(features_of(CHECKED[shape]) <= features for shape in shapes)

    async def ask(self, name: str, chat: Mapping[str, Any], allows: Callable[[str], bool]) -> Sequence[int]:
        """Let an engine in a region that is allowed read a chat. Raises GatewayError."""
        return await self._ask(name, allows, "messages", lambda reader: self._read(reader, name, chat))

    async def ask_text(self, name: str, text: str, special: bool, allows: Callable[[str], bool]) -> Sequence[int]:
        """Let an engine tokenise a prompt. Raises GatewayError."""
        return await self._ask(name, allows, "prompt", lambda reader: reader.read_text(name, text, special))

    async def _ask(
        self, name: str, allows: Callable[[str], bool], field: str, read: Callable[[ChatReader], Awaitable[list[int]]]
    ) -> Sequence[int]:
        reader = self._find_reader(name, allows)
        if reader is None:
            raise GatewayError(503, f"No engine can read the {field} now.", code="no_instance", retry_after_s=1.0)
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                return await read(reader)
        except EngineRejected as error:
            raise bad_field(field, error.message, "template_error") from error
        except (BackendError, TimeoutError) as error:
            late = f"The engine did not read the {field}."
            raise GatewayError(503, late, code="no_instance", retry_after_s=1.0) from error

    def _find_reader(self, name: str, allows: Callable[[str], bool]) -> ChatReader | None:
        now_s = self._pools.clock()
        usable = [one for one in self._pools.of_model(name) if one.usable(now_s) and allows(one.spec.region)]
        for instance in sorted(usable, key=lambda one: one.in_flight):
            if (reader := find_chat_reader(instance.engine)) is not None:
                return reader
        return None


def read_here(model: ServedModel, chat: Mapping[str, Any]) -> list[int] | None:
    """Return the prompt that the gateway makes of a shape; None: it refuses it."""
    if model.template is None:
        return None
    try:
        return model.encoder.encode_now(model.template.render_chat(chat), special=bool(chat.get("add_special_tokens")))
    except TemplateRejected:
        return None
