"""vLLM and LMCache servers, or vLLM alone with NIXL, as the engines of two regions."""

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from gateway.demo.cluster import MODEL, Cluster, find_free_ports, region_of
from gateway.demo.processes import Child
from tests.e2e.warden import find_segments

RATE_MBIT = 40.0
START_PATIENCE_S = 420.0
L1_GB = 0.5
KV_CACHE_BYTES = 128 << 20
MAX_MODEL_TOKENS = 8192
BLOCK_TOKENS = 32
FAR = "md9"
ABORT_GRACE_S = 5.0
ON_GPU = ("--gpu-memory-utilization", "0.25")
"""For instances that share a GPU."""
MQ_TIMEOUT_S = 60.0
"""After this long without an answer of a restarted LMCache server vLLM gives up and ends; 300 unless set."""
QUIET = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "LMCACHE_TRACK_USAGE": "false",
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
}


class Group(Child):
    """A server under a warden, with all processes that it starts."""

    def __init__(
        self,
        name: str,
        folder: Path,
        url: str,
        ready_path: str,
        command: Sequence[str],
        environment: Mapping[str, str] = QUIET,
    ) -> None:
        settings = [f"{key}={value}" for key, value in environment.items()]
        warden = [sys.executable, "-m", "tests.e2e.warden", url, ready_path, "env", *settings, *command]
        super().__init__(name, folder, warden, START_PATIENCE_S)

    def kill(self) -> None:
        """End all of it without a word, as a crash would."""
        segments = find_segments(self.pid)
        os.killpg(self.pid, signal.SIGKILL)
        for segment in segments:
            segment.unlink(missing_ok=True)


class VllmKit:
    """vLLM instances that share their region's LMCache server; each server keeps its KV in its region's store.

    Beside them there may be ``FAR``, a main-decode engine whose LMCache server reads region A's store over the link.
    """

    dialect = "lmcache-mp"
    hash_seed: str | None = None

    def __init__(
        self,
        python: Path,
        model: Path,
        chunk_tokens: int = 256,
        options: Callable[[str], Sequence[str]] = lambda name: (),
        environment: Mapping[str, str] = MappingProxyType({}),
        server_options: Sequence[str] = (),
    ) -> None:
        """``options`` (by the engine's name) and ``environment``: what vLLM is told beside the usual.

        ``server_options``: what the LMCache servers are.
        """
        self.chunk_tokens = chunk_tokens
        self.kv_name: str | None = str(model)
        self._options = options
        self._environment = {**QUIET, **environment}
        self._server_options = server_options
        self._python = str(python)
        self._servers: dict[str, tuple[int, int]] = {}

    def settings(self, name: str) -> dict[str, Any]:
        """Where the engine's LMCache server is, and what vLLM with it needs."""
        return {"abort_grace_s": ABORT_GRACE_S, "cache_server": self.cache_url(_place_of(name))}

    def cache_url(self, place: str) -> str:
        """HTTP port of an LMCache server."""
        return f"http://127.0.0.1:{self._servers[place][1]}"

    def companions(self, cluster: Cluster) -> list[Child]:
        """One LMCache server for each region."""
        return [self.cache_server(cluster, region) for region in cluster.stores]

    def cache_server(self, cluster: Cluster, place: str) -> Child:
        """An LMCache server, always at the same ports."""
        if place not in self._servers:
            first, second = find_free_ports(2)
            self._servers[place] = (first, second)
        port, http_port = self._servers[place]
        store_port = urlsplit(cluster.through_link["store"]).port if place == FAR else cluster.stores[place].port
        store = {"type": "resp", "host": "127.0.0.1", "port": store_port, "num_workers": 16}
        command = [self._python, "-m", "lmcache.cli.main", "server", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--http-host", "127.0.0.1", "--http-port", str(http_port), "--chunk-size", str(self.chunk_tokens)]
        command += ["--l1-size-gb", str(L1_GB), "--eviction-policy", "LRU", "--supported-transfer-mode", "auto"]
        command += ["--shm-name", "", "--disable-metrics", "--l2-adapter", json.dumps(store)]
        command += ["--l2-prefetch-policy", "retain"] if place == FAR else []
        command += self._server_options
        return Group(f"lmcache-{place}", cluster.folder, f"http://127.0.0.1:{http_port}", "/healthcheck", command)

    def engine(self, cluster: Cluster, name: str, listen: str = "127.0.0.1:0") -> Child:
        """One vLLM instance."""
        transfer = _lmcache(self._servers[_place_of(name)][0])
        return build_vllm(self._python, cluster, name, listen, transfer, self._environment, self._options(name))


class NixlKit:
    """vLLM instances that read each other's KV by NIXL, over TCP on this machine."""

    dialect = "lmcache-mp"
    hash_seed: str | None = None
    chunk_tokens = BLOCK_TOKENS
    kv_name: str | None = None

    def __init__(self, python: Path) -> None:
        self._python = str(python)

    def settings(self, name: str) -> dict[str, Any]:
        """Nothing."""
        return {}

    def companions(self, cluster: Cluster) -> list[Child]:
        """None: KV goes from engine to engine."""
        return []

    def engine(self, cluster: Cluster, name: str, listen: str = "127.0.0.1:0") -> Child:
        """One vLLM instance."""
        transfer = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
        address = {
            "UCX_TLS": "tcp,self",
            "UCX_NET_DEVICES": "lo",
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(find_free_ports(1)[0]),
        }
        return build_vllm(self._python, cluster, name, listen, transfer, QUIET | address)


def build_vllm(
    python: str,
    cluster: Cluster,
    name: str,
    listen: str,
    transfer: Mapping[str, object],
    environment: Mapping[str, str],
    options: Sequence[str] = (),
) -> Child:
    """One vLLM instance with a KV connector; ``options`` come last, so that they win."""
    port = urlsplit(f"//{listen}").port or find_free_ports(1)[0]
    plan = cluster.plan
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(plan.model)]
    command += ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port), "--enforce-eager"]
    command += ["--max-model-len", str(MAX_MODEL_TOKENS), "--dtype", plan.dtype, "--block-size", str(BLOCK_TOKENS)]
    command += ["--kv-cache-memory-bytes", str(KV_CACHE_BYTES), "--enable-prompt-tokens-details"]
    command += ["--enable-scale-out"]  # /inference/v1/generate
    command += ["--kv-events-config", json.dumps(_events(cluster.folder, name))]
    command += ["--kv-transfer-config", json.dumps(transfer), *options]
    return Group(name, cluster.folder, f"http://127.0.0.1:{port}", "/health", command, environment)


def free_gb() -> float:
    """Memory of this machine that nobody uses."""
    (line,) = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable")]
    return int(line.split()[1]) / (1 << 20)


def _place_of(name: str) -> str:
    return FAR if name == FAR else region_of(name)


def _events(folder: Path, name: str) -> dict[str, object]:
    """Events over Unix sockets: at a TCP address with a fixed port vLLM listens on all interfaces or not at all."""
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"ipc://{folder}/{name}.events",
        "replay_endpoint": f"ipc://{folder}/{name}.replay",
        "topic": "",
    }


def _lmcache(port: int) -> dict[str, object]:
    settings = {
        "lmcache.mp.host": "tcp://127.0.0.1",
        "lmcache.mp.port": port,
        "lmcache.mp.save_decode_cache": True,
        "lmcache.mp.mq_timeout": MQ_TIMEOUT_S,
    }
    return {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both", "kv_connector_extra_config": settings}
