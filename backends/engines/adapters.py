"""Engine adapters by name: those of this package, and those that installed packages register.

A package registers one by an entry point of the group ``pdd_gateway.engines`` that names a factory: a callable that
takes an ``EngineSpec`` and returns an ``Engine``. It is called once for each instance, without a running event loop.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import msgspec

from backends.base import Engine
from backends.engines.sglang import SglangEngine, SglangOptions
from backends.engines.vllm import VllmEngine

GROUP = "pdd_gateway.engines"


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What an adapter is built from: one entry of ``engines`` in the settings.

    ``url`` is the root of the engine's API, credentials included, ``api_key`` the engine's own key (never a client's),
    ``options`` what the settings hold for this adapter.
    """

    id: str
    url: str = field(repr=False)
    api_key: str | None = field(default=None, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)


EngineFactory = Callable[[EngineSpec], Engine]


class BadEngine(Exception):
    """The settings of an engine cannot be used; ``key`` is the one that is wrong, as ``kind`` or ``options.port``."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key = key


def build_engine(kind: str, spec: EngineSpec) -> Engine:
    """Build an adapter. Raises BadEngine; a factory may raise it too, or ValueError for its options as a whole."""
    factory = BUILT_IN.get(kind) or _load(kind)
    try:
        return factory(spec)
    except ValueError as error:
        raise BadEngine("options", str(error)) from None


def refuse_options(spec: EngineSpec) -> None:
    """Raise BadEngine when there are options for an adapter that has none."""
    for name in spec.options:
        raise BadEngine(f"options.{name}", "there is no such option")


def _load(kind: str) -> EngineFactory:
    found: dict[str, EntryPoint] = {point.name: point for point in entry_points(group=GROUP)}
    if kind not in found:
        known = ", ".join(sorted({*BUILT_IN, *found}))
        raise BadEngine("kind", f"there is no engine adapter {kind!r}; there are {known}")
    try:
        factory: EngineFactory = found[kind].load()
    except (ImportError, AttributeError) as error:
        raise BadEngine("kind", f"the adapter {kind!r} ({found[kind].value}) cannot be loaded: {error}") from error
    return factory


def _make_vllm(spec: EngineSpec) -> Engine:
    refuse_options(spec)
    return VllmEngine(spec.id, spec.url, api_key=spec.api_key)


def _make_sglang(spec: EngineSpec) -> Engine:
    try:
        options = msgspec.convert(spec.options, SglangOptions)
    except msgspec.ValidationError as error:
        raise BadEngine("options", str(error)) from None
    return SglangEngine(spec.id, spec.url, api_key=spec.api_key, options=options)


BUILT_IN: Mapping[str, EngineFactory] = {"vllm": _make_vllm, "sglang": _make_sglang}
