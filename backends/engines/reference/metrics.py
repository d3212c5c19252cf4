"""The engine's metrics, under vLLM's names."""

import time
from collections.abc import Callable
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

Source = Literal["local_compute", "local_cache_hit", "external_kv_transfer"]
STEP_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class EngineMetrics:
    """One registry per engine. Labels: ``model_name`` and ``engine``, as vLLM has them."""

    def __init__(self, model_name: str, *, blocks: int, block_size_tokens: int, dtype: str) -> None:
        self._registry = CollectorRegistry()
        started = Gauge("process_start_time_seconds", "When this engine started.", registry=self._registry)
        started.set(time.time())  # tells a restarted engine from the one before
        self._labels = {"model_name": model_name, "engine": "0"}
        self._running = self._gauge("vllm:num_requests_running", "Requests in the batch.")
        self._waiting = self._gauge("vllm:num_requests_waiting", "Requests that wait for a place.")
        self._usage = self._gauge("vllm:kv_cache_usage_perc", "Share of the block pool in use, 0..1.")
        self._prompt = self._counter("vllm:prompt_tokens", "Prompt tokens processed.")
        self._generated = self._counter("vllm:generation_tokens", "Tokens generated.")
        self._preemptions = self._counter("vllm:num_preemptions", "Requests that lost their blocks.")
        self._queries = self._counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the local cache.")
        self._hits = self._counter("vllm:prefix_cache_hits", "Prompt tokens found in the local cache.")
        self._store_queries = self._counter("vllm:external_prefix_cache_queries", "Tokens asked of the KV store.")
        self._store_hits = self._counter("vllm:external_prefix_cache_hits", "Tokens that the KV store gave.")
        self._store_failures = self._counter(
            "pdd:kv_store_failures", "Requests whose KV could not be fetched or stored."
        )
        self._sources = Counter(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens by where their KV came from.",
            [*self._labels, "source"],
            registry=self._registry,
        )
        self._success = Counter(
            "vllm:request_success", "Requests ended.", [*self._labels, "finished_reason"], registry=self._registry
        )
        self._step_s = Histogram(
            "pdd:step_seconds", "Duration of a model step.", registry=self._registry, buckets=STEP_BUCKETS_S
        )
        self._ttft_s = Histogram(
            "vllm:time_to_first_token_seconds",
            "Time from arrival to the first token.",
            list(self._labels),
            registry=self._registry,
        ).labels(**self._labels)
        info = {"block_size": str(block_size_tokens), "num_gpu_blocks": str(blocks), "cache_dtype": dtype}
        Gauge("vllm:cache_config_info", "Cache configuration.", ["engine", *info], registry=self._registry).labels(
            engine="0", **info
        ).set(1)

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self._registry)

    def follow_store(self, failures: Callable[[], int]) -> None:
        """Show the store's own count of failed operations."""
        gauge = self._gauge("pdd:kv_store_operation_failures", "Operations on the KV store that failed.")
        gauge.set_function(failures)

    def set_load(self, running: int, waiting: int, usage: float) -> None:
        """Current load; ``usage`` in 0..1."""
        self._running.set(running)
        self._waiting.set(waiting)
        self._usage.set(usage)

    def count_prompt(self, tokens: int, local_hits: int, store_hits: int) -> None:
        """A request was admitted with ``tokens`` prompt tokens, of which some KV was there already."""
        self._prompt.inc(tokens)
        self._queries.inc(tokens)
        self._hits.inc(local_hits)
        self._by_source("local_cache_hit", local_hits)
        self._by_source("external_kv_transfer", store_hits)
        self._by_source("local_compute", tokens - local_hits - store_hits)

    def count_fetch(self, asked_tokens: int, got_tokens: int) -> None:
        """The KV store was asked for some tokens' KV."""
        self._store_queries.inc(asked_tokens)
        self._store_hits.inc(got_tokens)

    def count_store_failure(self) -> None:
        """KV could not be put into the store, or not be had from it."""
        self._store_failures.inc()

    def count_step(self, duration_s: float, generated_tokens: int, preempted: int) -> None:
        """A model step ended."""
        self._step_s.observe(duration_s)
        self._generated.inc(generated_tokens)
        self._preemptions.inc(preempted)

    def count_first_token(self, after_s: float) -> None:
        """A request's first token went out."""
        self._ttft_s.observe(after_s)

    def count_end(self, reason: str) -> None:
        """A request ended with ``reason``."""
        self._success.labels(**self._labels, finished_reason=reason).inc()

    def _by_source(self, source: Source, tokens: int) -> None:
        self._sources.labels(**self._labels, source=source).inc(tokens)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, list(self._labels), registry=self._registry).labels(**self._labels)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, list(self._labels), registry=self._registry).labels(**self._labels)
