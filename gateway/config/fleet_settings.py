"""What the configuration says of the fleet: models, engines, links, and servers beside them."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from policies.section import Name, Section

Url = Annotated[str, Meta(pattern=r"^https?://[^\s/]+")]
ApiUrl = Annotated[str, Meta(pattern=r"^(?i:https?)://[^\s/?#]+[^\s?#]*$")]
"""A query or a fragment would end up in the middle of every path."""
Count = Annotated[int, Meta(ge=1)]
Ranks = Annotated[int, Meta(ge=1, le=255)]
Positive = Annotated[float, Meta(gt=0)]


class BadSettings(Exception):
    """The configuration cannot be used; the message names the key."""


class ModelSettings(Section, frozen=True):
    """A model that clients may ask for."""

    name: Annotated[Name, Meta(description="Name in requests; the engines must serve it under the same name.")]
    path: Annotated[
        str,
        Meta(
            min_length=1,
            description="Directory with tokenizer.json and the chat template. With `reader: engine` tiktoken.model "
            "will do in place of the one, and the other may be missing.",
        ),
    ]
    context_tokens: Annotated[
        Count | None,
        Meta(
            description="The most tokens of a prompt and its answer together. null: the least of what the engines that "
            "serve it tell (vLLM's `max_model_len`)."
        ),
    ] = None
    reader: Annotated[
        Literal["auto", "local", "engine"],
        Meta(
            description="Who makes prompts of chats. auto: this gateway; but an engine is asked for the prompts of "
            "models without a template, and of chats of a shape that an engine reads in another way: each engine "
            "process is tried with some small conversations. local: always this gateway. engine: always an engine."
        ),
    ] = "auto"
    kv_bytes_per_token: Annotated[
        Count | None,
        Meta(
            description="KV of one token in bytes, over all layers and ranks. null: computed from `config.json`, where "
            "linear states do not count, and sliding windows only where links move them for every token, as LMCache "
            "keeps them without `--separate-object-groups`."
        ),
    ] = None
    kv_dtype: Annotated[
        Literal["auto", "bfloat16", "float16", "float32", "fp8"],
        Meta(
            description="Element type of the KV, to compute with. auto: the `dtype` of `config.json`, or bfloat16; "
            "give it where the engines' `--kv-cache-dtype` or `--dtype` says other."
        ),
    ] = "auto"
    kv_name: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="Its name in the KV store, where that differs: LMCache takes vLLM's `--model`, not "
            "`--served-model-name`.",
        ),
    ] = None
    tool_parser: Annotated[
        Name | None,
        Meta(
            description="How the model writes tool calls, by the name of vLLM's `--tool-call-parser` "
            "(see gateway/text/parsers/README.md). null: guessed by its template; `none`: they stay text."
        ),
    ] = None
    reasoning_parser: Annotated[
        Name | None,
        Meta(
            description="How the model marks its reasoning, by the name of vLLM's `--reasoning-parser`. null: guessed "
            "by its template; `none`: it stays text."
        ),
    ] = None
    reasoning_field: Annotated[
        Literal["both", "reasoning", "reasoning_content"],
        Meta(description="Where chat answers have their reasoning: vLLM says `reasoning`, others `reasoning_content`."),
    ] = "both"
    media: Annotated[
        bool | Literal["auto"],
        Meta(
            description="Whether chats may hold images, sounds and films. Such a chat goes as a whole to one "
            "main-decode engine's own chat API, and is not split. auto: where its config.json speaks of them."
        ),
    ] = "auto"
    reuse_turns: Annotated[
        bool,
        Meta(
            description="Whether a chat's prompt begins with the exact ids of its earlier turns, where its messages "
            "still say the same (see Token-stable turns)."
        ),
    ] = True
    cache_effective: Annotated[bool, Meta(description="False: engines of this model never reuse a prefix.")] = True
    adapter: Annotated[
        bool | Literal["auto"],
        Meta(
            description="Whether its KV is not its namesakes', as with LoRA adapters of one base: its name then goes "
            "into its cache salts. auto: where another model has its `kv_name` or `path`. false: for a second name of "
            "the same weights."
        ),
    ] = "auto"


class EngineSettings(Section, frozen=True):
    """One engine instance."""

    id: Annotated[Name, Meta(description="Unique name, shown in traces and metrics.")]
    role: Annotated[Literal["P", "RLD", "MD"], Meta(description="Prefill, relay decode or main decode.")]
    model: Annotated[Name, Meta(description="One of ``models``.")]
    region: Annotated[Name, Meta(description="Where it stands.")]
    url: Annotated[
        ApiUrl,
        Meta(
            description="Base URL of its OpenAI-compatible API, with or without ``/v1``. Credentials in it are sent as "
            "Basic auth and shown nowhere."
        ),
    ]
    kind: Annotated[
        Name,
        Meta(description="Its adapter: ``vllm``, ``sglang``, or an installed package's (see backends/README.md)."),
    ] = "vllm"
    options: Annotated[dict[str, Any], Meta(description="What its adapter wants to know beside.")] = msgspec.field(
        default_factory=dict
    )
    max_running: Annotated[Count, Meta(description="Requests that it batches at once.")] = 64
    priority: Annotated[
        bool,
        Meta(
            description="True: it schedules by priority (vLLM's ``--scheduling-policy priority``) and is told each "
            "request's: 0 for high, 1 for normal, 2 for low."
        ),
    ] = False
    price_per_hour: Annotated[
        float,
        Meta(
            ge=0,
            description="What the instance costs in an hour, in any currency. A request is charged for one of its "
            "``max_running`` places while a leg runs there.",
        ),
    ] = 0.0
    api_key_env: Annotated[
        str | None, Meta(description="Environment variable that holds the key this engine wants.")
    ] = None
    kv_events: Annotated[
        str | None,
        Meta(
            description="ZMQ endpoint of its KV events; `auto`: what the engine says at /kv_event_sources; null: its "
            "cache is guessed from routing."
        ),
    ] = None
    kv_replay: Annotated[str | None, Meta(description="ZMQ endpoint that replays missed KV events.")] = None
    data_parallel_size: Annotated[
        Count | None,
        Meta(
            description="Its data-parallel ranks behind this URL; null: as many as it tells (vLLM does). The first "
            "publishes at `kv_events`, the others at the ports that follow; each leg names its rank. Only for adapters "
            "that can name one, as `vllm` can."
        ),
    ] = None
    abort_grace_s: Annotated[
        float,
        Meta(
            ge=0,
            description="A leg that nobody wants any more goes on until its first token, for at most this long. Above "
            "0 for vLLM 0.32 with LMCacheMPConnector as kv_both, which dies when it is aborted while it loads KV.",
        ),
    ] = 0.0
    cache_server: Annotated[
        Url | None,
        Meta(
            description="HTTP port of the LMCache server that it uses. It takes no legs while that server is away, or "
            "has restarted and does not know it; null: nobody looks.",
        ),
    ] = None
    prefill_curve: Annotated[
        str | None,
        Meta(description="File that ``pdd profile`` wrote for it; placement uses the curve."),
    ] = None
    chip: Annotated[
        Annotated[str, Meta(pattern=r"^([1-9][0-9]{0,3}x)?\S+$")] | None,
        Meta(description="What it runs on, like ``8xH200``; only ``pdd simulate --topology FILE`` wants to know."),
    ] = None


class LinkSettings(Section, frozen=True):
    """A WAN link, and the way that KV takes over it."""

    source: Annotated[Name, Meta(description="Region of the prefill instances.")]
    dest: Annotated[Name, Meta(description="Region of the main-decode instances.")]
    name: Annotated[
        Annotated[str, Meta(max_length=200, pattern=r"^\S*->\S*$")] | None,
        Meta(
            description="Its name, like `east->west/large`, where several links join the same regions. null: "
            "`SOURCE->DEST`."
        ),
    ] = None
    models: Annotated[
        Annotated[tuple[Name, ...], Meta(min_length=1)] | None,
        Meta(
            description="Whose KV it carries, of ``models``. null: that of all models that no other link between its "
            "regions names."
        ),
    ] = None
    path: Annotated[
        Literal["bridge", "engine_pull", "prefetch", "nixl"],
        Meta(
            description="Who moves the KV. bridge: ``pdd bridge``. prefetch: the LMCache server in ``dest``. "
            "engine_pull: the main-decode engine, out of a store that it shares with P. nixl: the same, out of P's "
            "memory."
        ),
    ] = "bridge"
    bridge: Annotated[
        Url | None,
        Meta(description="Base URL of the ``pdd bridge`` in ``dest``; needed by path bridge, and only there."),
    ] = None
    bridge_workers: Annotated[
        tuple[Url, ...],
        Meta(
            description="Further bridges between the same stores (`pdd bridge --workers`): each moves its share of "
            "every transfer."
        ),
    ] = ()
    bridge_key_env: Annotated[
        str | None, Meta(description="Environment variable that holds the key that the bridge asks for.")
    ] = None
    cache_server: Annotated[
        Url | None,
        Meta(description="HTTP port of the LMCache server in ``dest``; needed by path prefetch, and only there."),
    ] = None
    relay_kv: Annotated[
        Literal["store", "nixl"],
        Meta(
            description="Where RLDs in ``source`` get a prompt's KV. store: the region's store, as the link does. "
            "nixl: P's memory, while the link has it from the store (engines with vLLM's MultiConnector, a "
            "NixlConnector before LMCache's); P's token is not shown then. Path nixl always does it so."
        ),
    ] = "store"
    lease_s: Annotated[
        Positive, Meta(description="With nixl: how long P keeps KV that it lends (``kv_lease_duration``).")
    ] = 30.0
    world_size: Annotated[
        Ranks | None,
        Meta(
            description="Tensor-parallel ranks of the engines in `source`; null: learnt, 1 until then. "
            "Models with multi-head latent attention have one copy whatever this says."
        ),
    ] = None
    dest_world_size: Annotated[
        Ranks | None,
        Meta(
            description="Tensor-parallel ranks of the engines in `dest`; null: learnt, as many as in `source` until "
            "then. Where they differ the bridge regroups the KV heads of each chunk on its way; path bridge only."
        ),
    ] = None
    kv_layout: Annotated[
        Literal["auto", "packed", "split"],
        Meta(
            description="How chunks hold heads, where the bridge regroups them. packed: each one's keys and values "
            "side by side, as vLLM since 0.29 has it. split: all keys before all values. auto: packed in dialect "
            "lmcache-mp, split in lmcache."
        ),
    ] = "auto"
    separate_object_groups: Annotated[
        bool | None,
        Meta(
            description="The LMCache servers run with `--separate-object-groups`: of sliding windows and linear states "
            "only what the prompt's end needs is moved. Dialect lmcache-mp and path bridge only. null: learnt, false "
            "until then."
        ),
    ] = None
    dialect: Annotated[
        Literal["lmcache-mp", "lmcache"] | None,
        Meta(
            description="How the stores spell chunk keys. lmcache-mp: LMCache servers (LMCacheMPConnector). lmcache: "
            "LMCache inside the engines. null: learnt, lmcache-mp until then."
        ),
    ] = None
    hash_seed: Annotated[
        Annotated[int, Meta(ge=0, lt=1 << 32)] | Literal["no_vllm"] | None,
        Meta(
            description="Dialect lmcache, and only there: PYTHONHASHSEED of the vLLM processes, the same for all. "
            "no_vllm: LMCache runs without vLLM, as in `pdd engine`. null: learnt where it is no_vllm or below 256; "
            "others must be given."
        ),
    ] = None
    chunk_tokens: Annotated[
        Count | None,
        Meta(description="Tokens per KV chunk, as the engines' LMCache has it. null: learnt, 256 until then."),
    ] = None
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16", "uint8", "fp8_e4m3fn"] | None,
        Meta(
            description="Element type of the KV, which is part of the keys in dialect lmcache. KV in fp8 is stored as "
            "uint8 or as fp8_e4m3fn. null: learnt, bfloat16 until then."
        ),
    ] = None
    rate_mbit: Annotated[Positive, Meta(description="Rate to assume until one is measured, in Mbit/s.")] = 1000.0


class UpstreamSettings(Section, frozen=True):
    """A server whose models' requests are passed on as they are: any OpenAI-compatible one."""

    id: Annotated[Name, Meta(description="Unique name, shown in timelines and metrics.")]
    url: Annotated[ApiUrl, Meta(description="Base URL of its API, as ``engines[].url``.")]
    models: Annotated[
        tuple[Name, ...] | None, Meta(description="What it serves; null: what its ``/v1/models`` lists.")
    ] = None
    region: Annotated[
        Name | None, Meta(description="Where it stands; null: tenants that are pinned to regions are not sent there.")
    ] = None
    paths: Annotated[
        tuple[str, ...] | None, Meta(description="Paths that it is asked at; null: all that are passed on.")
    ] = None
    api_key_env: Annotated[str | None, Meta(description="Environment variable that holds the key it wants.")] = None
    max_running: Annotated[Count, Meta(description="Most requests that this process has running there.")] = 64
    first_byte_timeout_s: Annotated[Positive, Meta(description="Longest wait for an answer's first byte.")] = 600.0
    idle_timeout_s: Annotated[Positive, Meta(description="Longest silence inside an answer.")] = 120.0


class ExternalSettings(Section, frozen=True):
    """A model of an external provider, which answers chats when the rules' `overflow` says so."""

    model: Annotated[Name, Meta(description="Its name as LiteLLM has it, like ``openai/gpt-4o`` (extra ``litellm``).")]
    api_base: Annotated[Url | None, Meta(description="Where the provider is; null: where LiteLLM knows it.")] = None
    api_key_env: Annotated[
        str | None, Meta(description="Environment variable with the key; null: the one that LiteLLM looks for.")
    ] = None
    timeout_s: Annotated[Positive, Meta(description="Longest wait for an answer, or for its next piece.")] = 600.0


IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes puts what a pod needs to ask its own cluster."""


class DiscoverySettings(Section, frozen=True):
    """A Kubernetes cluster whose pods are engines, by their labels `pdd.role` and `pdd.model`."""

    region: Annotated[Name, Meta(description="Where the cluster stands.")]
    namespace: Annotated[
        Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,63}$")] | None,
        Meta(description="Namespace of the pods; null: the gateway's own."),
    ] = None
    selector: Annotated[
        str, Meta(min_length=1, max_length=1000, description="Label selector; `pdd.role`: all that have the label.")
    ] = "pdd.role"
    api: Annotated[
        Url | None, Meta(description="URL of the cluster's API; null: the cluster that the gateway runs in.")
    ] = None
    token_file: Annotated[
        str | None, Meta(description="File with the token to show; read anew for each request. null: none is shown.")
    ] = str(IN_POD / "token")
    ca_file: Annotated[
        str | None, Meta(description="Certificates to trust for the API; null: those that the system trusts.")
    ] = str(IN_POD / "ca.crt")
    engine: Annotated[dict[str, Any], Meta(description="Further settings of each engine, as under ``engines``.")] = (
        msgspec.field(default_factory=dict)
    )

    def make_engine(self, **known: str) -> EngineSettings:
        """Return an engine of this cluster. Raises BadSettings."""
        try:
            return msgspec.convert({**self.engine, **known, "region": self.region}, EngineSettings)
        except msgspec.ValidationError as error:
            raise BadSettings(str(error)) from None

    def find_namespace(self) -> str:
        """Return the namespace to look in. Raises BadSettings."""
        if self.namespace is not None:
            return self.namespace
        try:
            return (IN_POD / "namespace").read_text(encoding="ascii").strip()
        except OSError:
            raise BadSettings(f"discovery[{self.region}].namespace: not set, and this is no pod") from None

    def find_api(self) -> str:
        """Return the API's URL. Raises BadSettings."""
        if self.api is not None:
            return self.api
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}") for part in ("HOST", "PORT"))
        if not host or not port:
            raise BadSettings(f"discovery[{self.region}].api: not set, and this is no pod")
        return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
