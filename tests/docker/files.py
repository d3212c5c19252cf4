"""The files under docker/ as the tests read them: merged compose files, images, and what listens where."""

import argparse
import contextlib
import copy
import functools
import importlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gateway.__main__ import COMMANDS
from gateway.config.settings import Settings, parse_settings

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
REPLACED = ("command", "entrypoint", "test")
"""Lists that an override replaces; others it lengthens."""
STORE_PORT = 6379


class Unusable(AssertionError):
    """A file says something that nothing understands."""


@dataclass(frozen=True, slots=True)
class Image:
    """The last stage of a Dockerfile."""

    base: str
    user: str
    entrypoint: list[str]
    command: list[str]
    check: list[str]
    exposed: frozenset[int]


class _Loader(yaml.SafeLoader):
    """Knows Compose's tag for what an override takes away."""


RESET = object()
_Loader.add_constructor("!reset", lambda loader, node: RESET)


def read_yaml(path: Path) -> Any:
    """One document; what an override takes away is RESET."""
    return yaml.load(path.read_text(encoding="utf-8"), _Loader)


def read_compose(*names: str) -> dict[str, Any]:
    """Compose files as Compose merges them."""
    return copy.deepcopy(_read_compose(names))


@functools.cache
def _read_compose(names: tuple[str, ...]) -> dict[str, Any]:
    merged: Any = {}
    for name in names:
        merged = _merge("", merged, read_yaml(DOCKER / name))
    return {key: value for key, value in merged.items() if not key.startswith("x-")}


def _merge(key: str, old: Any, new: Any) -> Any:
    if isinstance(old, list) and isinstance(new, Mapping):
        old = dict.fromkeys(old)  # networks, in short
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        both = {**old, **{name: _merge(name, old[name], new[name]) if name in old else new[name] for name in new}}
        return {name: value for name, value in both.items() if value is not RESET}
    if isinstance(old, list) and isinstance(new, list) and key not in REPLACED:
        if key == "volumes":
            taken = {volume.split(":")[1] for volume in new}
            return [volume for volume in old if volume.split(":")[1] not in taken] + new
        return old + [item for item in new if item not in old]
    return new


def read_image(name: str) -> Image:
    """One of docker/'s images."""
    text = (DOCKER / name).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    start = max(number for number, line in enumerate(lines) if line.startswith("FROM "))
    found: dict[str, str] = {}
    for line in lines[start:]:
        word, _, rest = line.strip().partition(" ")
        found[word] = rest.strip()
    return Image(
        base=found["FROM"],
        user=found.get("USER", ""),
        entrypoint=json.loads(found.get("ENTRYPOINT", "[]")),
        command=json.loads(found.get("CMD", "[]")),
        check=json.loads(found.get("HEALTHCHECK", "CMD []").partition("CMD ")[2]),
        exposed=frozenset(int(port) for port in found.get("EXPOSE", "").split()),
    )


def image_of(service: Mapping[str, Any]) -> Image | None:
    """The image of a service that is built here."""
    build = service.get("build")
    return read_image(Path(build["dockerfile"]).name) if build else None


def argv_of(service: Mapping[str, Any]) -> list[str]:
    """What the service's process is started with."""
    image = image_of(service)
    entrypoint = service.get("entrypoint") or (image.entrypoint if image else [])
    return [*entrypoint, *(service.get("command") or (image.command if image else []))]


def parse_pdd(argv: Sequence[str]) -> tuple[str, argparse.Namespace]:
    """A ``pdd`` command and its options. Raises Unusable."""
    if argv[0] != "pdd" or argv[1] not in COMMANDS:
        raise Unusable(f"{argv[:2]} is no command of pdd")
    command: Any = importlib.import_module(COMMANDS[argv[1]][0])
    parser = argparse.ArgumentParser(prog=f"pdd {argv[1]}")
    command.add_arguments(parser)
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return argv[1], parser.parse_args(argv[2:])
    except SystemExit:
        raise Unusable(complaint.getvalue()) from None


def option(argv: Sequence[str], name: str) -> str:
    """The value of an option of a program that is not this project's."""
    return argv[list(argv).index(name) + 1]


def ports_of(service: Mapping[str, Any]) -> set[int]:
    """The ports at which others reach the service."""
    match argv := argv_of(service):
        case ["valkey-server", *_]:
            return {STORE_PORT}
        case ["pdd", *_]:
            return _pdd_ports(*parse_pdd(argv)) | (_admin_ports(service) if argv[1] == "serve" else set())
        case ["python" | "python3", "-m", "vllm.entrypoints.openai.api_server", *_]:
            events = json.loads(option(argv, "--kv-events-config"))
            return {int(option(argv, "--port")), _port(events["endpoint"]), _port(events["replay_endpoint"])}
        case ["python" | "python3", "-m", "lmcache.cli.main", *_]:
            return {int(option(argv, "--port")), int(option(argv, "--http-port"))}
    return {"prom/prometheus": {9090}, "grafana/grafana": {3000}}[service["image"].partition(":")[0]]


def _pdd_ports(command: str, options: argparse.Namespace) -> set[int]:
    match command:
        case "engine":
            return {_port(options.listen), options.kv_events_port, options.kv_events_replay_port}
        case "wan":
            return {_port(route.partition("=")[0]) for route in options.route}
        case "serve" | "bridge":
            return {_port(options.listen)}
    raise Unusable(f"pdd {command} serves nothing")


def _admin_ports(service: Mapping[str, Any]) -> set[int]:
    listen = settings_of({"services": {"gateway": service}}).admin.listen
    return {_port(listen)} if listen else set()


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def wan_routes(service: Mapping[str, Any]) -> dict[int, tuple[str, int]]:
    """Where each port of the link leads."""
    _, options = parse_pdd(argv_of(service))
    pairs = [route.partition("=")[::2] for route in options.route]
    return {_port(near): (far.rpartition(":")[0], _port(far)) for near, far in pairs}


def settings_of(compose: Mapping[str, Any]) -> Settings:
    """The gateway's settings in a compose deployment."""
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in compose["services"]["gateway"]["volumes"]}
    return parse_settings(read_yaml(DOCKER / mounted["/etc/pdd/gateway.yaml"]))


def host_port(url: str) -> tuple[str, int]:
    """Host and port of a URL that names both. Raises Unusable."""
    found = re.fullmatch(r"[a-z]+://([^/:]+):(\d+)/?", url)
    if found is None:
        raise Unusable(f"{url} does not name host and port")
    return found[1], int(found[2])
