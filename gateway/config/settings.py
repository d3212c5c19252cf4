"""The gateway's configuration file: read once, checked whole, refused with the key's name."""

import ipaddress
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml
from msgspec import Meta

from backends.transport.address import has_credentials, root_of
from gateway.config.fleet_settings import (
    ApiUrl,
    BadSettings,
    Count,
    DiscoverySettings,
    EngineSettings,
    ExternalSettings,
    LinkSettings,
    ModelSettings,
    Positive,
    UpstreamSettings,
)
from gateway.config.paths import ALL_PATHS
from gateway.http.proxies import IpNetwork
from policies.rules import BadRules, Rules, parse_rules
from policies.section import Section, add_choices


class LimitSettings(Section, frozen=True):
    """What one request may be."""

    max_body_bytes: Annotated[Count, Meta(description="Largest request body.")] = 32 * 1024 * 1024
    max_bodies_bytes: Annotated[
        Count,
        Meta(
            description="Bodies of all running requests, times the choices that they ask for. "
            "A tenant holds no more than is free, so alone at most half."
        ),
    ] = 512 * 1024 * 1024
    max_beside_bytes: Annotated[
        Count,
        Meta(description="What each engine call carries beside the prompt: `logit_bias`, schemas, unknown fields."),
    ] = 64 * 1024
    write_timeout_s: Annotated[Positive, Meta(description="A client that takes nothing for this long is cut off.")] = (
        120.0
    )
    body_timeout_s: Annotated[
        Positive, Meta(description="A body that is not there whole after this long is a 408.")
    ] = 120.0
    head_timeout_s: Annotated[
        Positive,
        Meta(description="The same for a request's line and headers, and for a new connection's first request."),
    ] = 30.0
    keep_alive_s: Annotated[
        Count,
        Meta(
            description="How long a connection may be idle. Longer than the load balancer's, so that it closes first."
        ),
    ] = 75
    max_connections: Annotated[
        Count,
        Meta(
            description="Open connections, in TLS handshakes, too; beyond, one without a whole request makes room for "
            "a new one. An address holds no more than are free. Never more than the descriptors less a quarter."
        ),
    ] = 10_000


class TlsSettings(Section, frozen=True):
    """TLS on all listeners. PEM files."""

    cert_file: Annotated[str, Meta(min_length=1, description="Certificate, followed by its chain.")]
    key_file: Annotated[str, Meta(min_length=1, description="Its private key, without a password.")]
    client_ca_file: Annotated[
        str | None, Meta(description="Clients must show a certificate signed by one of these. null: none is asked for.")
    ] = None


class AdminSettings(Section, frozen=True):
    """Where the operator's pages are: /metrics and /admin."""

    listen: Annotated[
        Annotated[str, Meta(pattern=r"^\S+:\d{1,5}$")] | None,
        Meta(
            description="HOST:PORT of their own listener. null: they are on ``listen`` if there is a key, or if that "
            "is loopback and clients need none, and else nowhere."
        ),
    ] = None
    key_env: Annotated[
        str | None,
        Meta(
            description="Environment variable with the operator's key; needed where others can connect to ``listen``."
        ),
    ] = None
    open: Annotated[bool, Meta(description="True: ``listen`` needs no key. Whoever can connect sees these pages.")] = (
        False
    )


class AuthSettings(Section, frozen=True):
    """Whether clients need keys. With a secret they do."""

    secret_env: Annotated[
        str | None,
        Meta(description="Environment variable with the secret that keys are hashed and caches are salted with."),
    ] = None
    secret_file: Annotated[str | None, Meta(description="File with that secret, instead.")] = None
    open: Annotated[
        bool, Meta(description="True: without keys also where others than this machine can connect. Everybody can ask.")
    ] = False
    failures_per_min: Annotated[
        Count, Meta(description="Bad keys in a minute from one address, beyond which the answer is 429.")
    ] = 60

    @property
    def asks_for_keys(self) -> bool:
        """Whether there is a secret to check keys with."""
        return self.secret_env is not None or self.secret_file is not None


class AdmissionSettings(Section, frozen=True):
    """How requests wait when the engines are full."""

    max_running: Annotated[
        Count | None,
        Meta(description="Answers of a model that this process runs at once. null: as many as its MD instances batch."),
    ] = None
    max_waiting: Annotated[
        int, Meta(ge=0, description="Requests for a model that may wait; more are refused with 503.")
    ] = 1000
    deadline_s: Annotated[Positive, Meta(description="Longest wait, after which a request is refused with 503.")] = 30.0


class TraceSettings(Section, frozen=True):
    """Where the lines go that the rule `trace.record` asks for."""

    file: Annotated[
        str | None,
        Meta(description="File that this process appends them to. null: a stream in Redis, of all processes."),
    ] = None
    most_rows: Annotated[
        Count, Meta(description="Lines that are kept: the stream drops its oldest, a file that is full takes no more.")
    ] = 200_000


class ResponseSettings(Section, frozen=True):
    """Responses that are kept for `previous_response_id` and `GET /v1/responses/{id}`."""

    keep_s: Annotated[
        Count | None,
        Meta(
            description="How long, in seconds. They stand in Redis, sealed with the secret of `auth`, which is needed. "
            "null: none are kept."
        ),
    ] = None


class TurnSettings(Section, frozen=True):
    """What processes tell each other of the exact ids of chats' turns."""

    share_s: Annotated[
        Count | None,
        Meta(
            description="How long, in seconds, they stand in Redis for other processes, sealed with the secret of "
            "`auth`, which is needed. null: each process keeps its own."
        ),
    ] = None


class Settings(Section, frozen=True):
    """The whole file."""

    models: Annotated[tuple[ModelSettings, ...], Meta(min_length=1)]
    engines: tuple[EngineSettings, ...] = ()
    listen: Annotated[str, Meta(pattern=r"^\S+:\d{1,5}$", description="HOST:PORT to serve on.")] = "127.0.0.1:8000"
    workers: Annotated[
        int,
        Meta(
            ge=1,
            le=256,
            description="Processes that share ``listen`` and the state, one core each. What a process holds at most is "
            "divided among them. `pdd serve --workers` wins.",
        ),
    ] = 1
    redis_url: Annotated[
        str | None, Meta(description="Redis or Valkey; REDIS_URL wins; neither: a private Valkey is started.")
    ] = None
    links: tuple[LinkSettings, ...] = ()
    discovery: tuple[DiscoverySettings, ...] = ()
    upstreams: tuple[UpstreamSettings, ...] = ()
    external: tuple[ExternalSettings, ...] = ()
    rules: Annotated[Rules, Meta(description="Rules to start with; see the rules table.")] = Rules()
    limits: LimitSettings = LimitSettings()
    auth: AuthSettings = AuthSettings()
    admission: AdmissionSettings = AdmissionSettings()
    admin: AdminSettings = AdminSettings()
    trace: TraceSettings = TraceSettings()
    responses: ResponseSettings = ResponseSettings()
    turns: TurnSettings = TurnSettings()
    otlp_endpoint: Annotated[
        ApiUrl | None,
        Meta(
            description="Base address of an OpenTelemetry receiver (OTLP over HTTP, as http://collector:4318) that "
            "gets spans of each request; OTEL_EXPORTER_OTLP_ENDPOINT wins. null: none are made.",
        ),
    ] = None
    tls: TlsSettings | None = None
    cors_origins: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^(\*|(?i:https?)://[^\s/?#]+)$")], ...],
        Meta(
            description="Origins (as https://chat.example) whose pages may ask the API from a browser; `*`: all. "
            "Empty: none may."
        ),
    ] = ()
    access_log: Annotated[
        str | None,
        Meta(
            description="File that gets one JSON line for each request, without any text; `-`: standard output. null: "
            "there is none."
        ),
    ] = None
    trusted_proxies: Annotated[
        tuple[str, ...],
        Meta(
            description="Networks (as 10.0.0.0/8) of proxies whose X-Forwarded-For is believed; from others it is "
            "ignored."
        ),
    ] = ()
    health_interval_s: Annotated[Positive, Meta(description="Pause between two looks at an instance.")] = 1.0
    canary_hold_s: Annotated[
        float,
        Meta(
            ge=0,
            description="How long a new engine process waits, at most, for its first canary to come back: until then "
            "it shares no answer and no KV with others, and an MD answers alone. 0: not at all.",
        ),
    ] = 20.0
    canary_interval_s: Annotated[
        float,
        Meta(
            ge=0,
            description="Pause between two rounds of canaries: short prompts that show whether engines that work "
            "together give the same tokens, and keep cache salts apart. New engine processes are checked at once. "
            "0: none are sent.",
        ),
    ] = 600.0
    drain_s: Annotated[
        int,
        Meta(
            ge=0,
            description="How long running answers may go on after SIGTERM. Then streams end in an error event and "
            "other answers are 503, with the code shutting_down.",
        ),
    ] = 30
    log_level: Literal["debug", "info", "warning", "error"] = "info"


MOST_YAML_VALUES = 1_000_000


def load_settings(path: Path) -> Settings:
    """Read a YAML (or JSON) file. Raises BadSettings."""
    return parse_settings(read_yaml(path))


def load_rules(path: Path) -> Rules:
    """Read rules from a YAML (or JSON) file. Raises BadSettings."""
    try:
        return parse_rules(read_yaml(path))
    except BadRules as error:
        raise BadSettings(f"{path}: {error}") from None


def read_yaml(path: Path) -> Any:
    """Return what a YAML (or JSON) file holds. Raises BadSettings."""
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadSettings(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise BadSettings(f"{path} is not valid YAML: {error}") from None
    if count_values(value, {}) > MOST_YAML_VALUES:
        raise BadSettings(f"{path} holds more than {MOST_YAML_VALUES} values, its aliases resolved, or itself")
    return value


def count_values(value: Any, counted: dict[int, float]) -> float:
    """Count the values in a value, as often as they are reached; one that holds itself has no end."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in counted:
        counted[id(value)] = math.inf
        entries = [*value, *value.values()] if isinstance(value, dict) else value
        counted[id(value)] = 1 + sum(count_values(entry, counted) for entry in entries)
    return counted[id(value)]


def parse_settings(raw: Any) -> Settings:
    """Check a parsed configuration. Raises BadSettings."""
    try:
        settings = msgspec.convert(raw, Settings)
    except msgspec.ValidationError as error:
        raise BadSettings(add_choices(str(error), Settings)) from None
    check_references(settings)
    _check_auth(settings.auth)
    _check_discovery(settings)
    find_proxies(settings)
    return settings


def find_proxies(settings: Settings) -> tuple[IpNetwork, ...]:
    """Return the networks of the proxies that are believed. Raises BadSettings."""
    networks = []
    for number, text in enumerate(settings.trusted_proxies):
        try:
            networks.append(ipaddress.ip_network(text))
        except ValueError as error:
            raise BadSettings(f"trusted_proxies[{number}]: {error}") from None
    return tuple(networks)


def find_redis(settings: Settings) -> str | None:
    """Where the shared state lives: the environment wins over the file; None: nowhere yet."""
    return os.environ.get("REDIS_URL") or settings.redis_url


def find_otlp(settings: Settings) -> str | None:
    """Where spans are sent to: the environment wins over the file; None: nowhere."""
    return os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or settings.otlp_endpoint


def read_key(where: str, variable: str | None) -> str | None:
    """Return an API key from the environment; None where none is wanted. Raises BadSettings that names ``where``."""
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise BadSettings(f"{where}: {variable} is not set")
    return key


def find_url(where: str, url: str, key_env: str | None) -> str:
    """Return the root of a server's API. Raises BadSettings where it has two ways to show who asks."""
    if key_env is not None and has_credentials(url):
        raise BadSettings(f"{where}.url: it has credentials, and there is an api_key_env")
    return root_of(url)


def _check_auth(auth: AuthSettings) -> None:
    if auth.secret_env is not None and auth.secret_file is not None:
        raise BadSettings("auth.secret_file: auth.secret_env is set too")
    if auth.open and auth.asks_for_keys:
        raise BadSettings("auth.open: keys are asked for, as there is a secret")


def _check_discovery(settings: Settings) -> None:
    _unique("discovery[].region", [found.region for found in settings.discovery])
    for number, found in enumerate(settings.discovery):
        try:
            found.make_engine(id="pod", role="P", model="any", url="http://pod")
        except BadSettings as error:
            raise BadSettings(f"discovery[{number}].engine: {error}") from None


def _check_others(settings: Settings, models: set[str]) -> None:
    externals = _unique("external[].model", [external.model for external in settings.external])
    if (overflow := settings.rules.overflow.model) is not None and overflow not in externals:
        raise BadSettings(f"rules.overflow.model: {overflow!r} is not in external")
    _unique("upstreams[].id", [upstream.id for upstream in settings.upstreams])
    for number, upstream in enumerate(settings.upstreams):
        for name in upstream.models or ():
            if name in models:
                raise BadSettings(f"upstreams[{number}].models: {name!r} is in models, too")
        for path in upstream.paths or ():
            if path not in ALL_PATHS:
                raise BadSettings(f"upstreams[{number}].paths: {path!r} is not one of {', '.join(ALL_PATHS)}")


def check_references(settings: Settings) -> None:
    """Check that names lead to something, and that nothing stands twice. Raises BadSettings."""
    models = _unique("models[].name", [model.name for model in settings.models])
    _unique("engines[].id", [engine.id for engine in settings.engines])
    for number, engine in enumerate(settings.engines):
        if engine.model not in models:
            raise BadSettings(f"engines[{number}].model: {engine.model!r} is not in models")
    _check_others(settings, models)
    if not settings.engines and not settings.discovery:
        raise BadSettings("engines: there is none, and no discovery")
    regions = {engine.region for engine in settings.engines} | {found.region for found in settings.discovery}
    for number, link in enumerate(settings.links):
        for key in ("source", "dest"):
            if getattr(link, key) not in regions:
                raise BadSettings(f"links[{number}].{key}: no engine is in region {getattr(link, key)!r}")
        _check_link(f"links[{number}]", link, learns=settings.canary_interval_s > 0)
    _check_carried(settings.links, models)


def link_name(link: LinkSettings) -> str:
    """Return what documents, logs and metrics call a link."""
    return link.name or f"{link.source}->{link.dest}"


def _check_carried(links: Sequence[LinkSettings], models: set[str]) -> None:
    """Check that between two regions one link at most is for a model."""
    _unique("links[].name", [link_name(link) for link in links])
    taken: dict[tuple[str, str, str | None], str] = {}
    for number, link in enumerate(links):
        for model in link.models or (None,):
            if model is not None and model not in models:
                raise BadSettings(f"links[{number}].models: {model!r} is not in models")
            other = taken.setdefault((link.source, link.dest, model), link_name(link))
            if other != link_name(link):
                which = "all other models" if model is None else f"{model!r}"
                raise BadSettings(f"links[{number}].models: {other} between the same regions is for {which}, too")


def _check_link(where: str, link: LinkSettings, learns: bool) -> None:
    """``learns``: canaries are sent, of which the link learns what is not given."""
    for key, path in (("bridge", "bridge"), ("cache_server", "prefetch")):
        is_given = getattr(link, key) is not None
        if is_given != (link.path == path):
            raise BadSettings(f"{where}.{key}: path {link.path} {'has no' if is_given else 'needs a'} {key}")
    for key in ("bridge_workers", "bridge_key_env"):
        if link.path != "bridge" and getattr(link, key):
            raise BadSettings(f"{where}.{key}: path {link.path} has no bridge")
    dialect, is_regrouping = link.dialect or "lmcache-mp", link.dest_world_size not in (None, link.world_size or 1)
    if link.path != "bridge" and is_regrouping:
        raise BadSettings(f"{where}.dest_world_size: path {link.path} does not regroup KV heads, only path bridge does")
    if link.separate_object_groups and (link.path, dialect) != ("bridge", "lmcache-mp"):
        raise BadSettings(f"{where}.separate_object_groups: only path bridge with dialect lmcache-mp has object groups")
    if link.separate_object_groups and is_regrouping:
        raise BadSettings(f"{where}.dest_world_size: chunks in object groups are not regrouped")
    if dialect == "lmcache" and link.kv_layout == "packed":
        raise BadSettings(f"{where}.kv_layout: LMCache inside the engines (dialect lmcache) knows split only")
    if dialect == "lmcache-mp" and link.hash_seed is not None:
        raise BadSettings(f"{where}.hash_seed: dialect lmcache-mp has none")
    if dialect == "lmcache" and link.hash_seed is None and not (learns and link.path == "bridge"):
        raise BadSettings(
            f"{where}.hash_seed: dialect lmcache needs it where no canaries over a bridge learn it. LMCache inside "
            "vLLM chains its keys from PYTHONHASHSEED, or from a random number where that is not set: start all "
            "engines with the same one and give it here, or use LMCache servers (dialect lmcache-mp)"
        )


def _unique(key: str, names: list[str]) -> set[str]:
    for name in names:
        if names.count(name) > 1:
            raise BadSettings(f"{key}: {name!r} stands twice")
    return set(names)
