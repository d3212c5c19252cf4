"""Puts an engine process together and runs it."""

import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import transformers
import uvloop

from backends.engines.reference.blocks import BlockPool
from backends.engines.reference.core import ReferenceEngine, Stepper
from backends.engines.reference.events import EventPublisher, EventSettings
from backends.engines.reference.kv_store import KvStore
from backends.engines.reference.metrics import EngineMetrics
from backends.engines.reference.model import ModelRunner, ModelShape, UnsupportedModel, read_shape
from backends.engines.reference.sampler import Sampler
from backends.engines.reference.scheduler import Scheduler, StepLimits, Work
from backends.engines.reference.sequence import Params
from backends.engines.reference.sequence import Sequence as TokenSequence
from backends.engines.reference.server import ReferenceServer, Served
from backends.engines.reference.settings import ReferenceSettings
from backends.engines.reference.text import Text
from backends.transport.lifetime import die_with_parent
from backends.transport.serving import CannotListen, bind
from backends.transport.serving import serve as serve_app


@dataclass(frozen=True, slots=True)
class Size:
    """How large the pool and the context are."""

    blocks: int
    context_tokens: int


def choose_size(settings: ReferenceSettings, shape: ModelShape) -> Size:
    """Blocks that fit the memory bound, and the context they allow. Raises ValueError."""
    tokens = settings.kv_cache_mib * (1 << 20) // shape.kv_bytes_per_token
    blocks = tokens // settings.block_size_tokens
    room = blocks * settings.block_size_tokens
    context = min(settings.max_model_len or shape.context_tokens, shape.context_tokens)
    if settings.max_model_len is not None and settings.max_model_len > min(room, shape.context_tokens):
        raise ValueError(
            f"--max-model-len {settings.max_model_len}: the model allows {shape.context_tokens} tokens, "
            f"--kv-cache-mib {settings.kv_cache_mib} holds {room}"
        )
    if min(context, room) < 2:
        raise ValueError(f"--kv-cache-mib {settings.kv_cache_mib} is too small for this model")
    return Size(blocks, min(context, room))


def serve(settings: ReferenceSettings) -> int:
    """Run until SIGTERM or SIGINT; the exit status."""
    if settings.die_with_parent:
        die_with_parent(signal.SIGTERM, parent_pid=os.getppid())
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(settings.threads)
    try:
        listener = bind(settings.host, settings.port)
        shape = read_shape(settings.model, settings.dtype)
        size = choose_size(settings, shape)
        if shape.kv_heads % settings.kv_ranks:
            raise ValueError(f"--kv-ranks {settings.kv_ranks} does not divide the model's {shape.kv_heads} KV heads")
        runner = ModelRunner(settings.model, shape, size.blocks, settings.block_size_tokens)
    except (CannotListen, OSError, ValueError, UnsupportedModel) as error:
        print(f"pdd engine: {error}", file=sys.stderr)  # noqa: T201 (a command's message)
        return 2
    store = None
    if settings.kv_store is not None:
        store = KvStore(
            runner,
            settings.kv_store,
            settings.served_model_name,
            instance_id=f"pdd-{os.getpid()}",
            chunk_tokens=settings.kv_chunk_tokens,
            timeout_s=settings.kv_timeout_s,
            ranks=settings.kv_ranks,
        )
    stepper = Stepper(runner, Sampler(), settings.min_step_s)
    _warm_up(stepper, settings.block_size_tokens)
    # What lives now lives for good: the collector need not look at it again during a decode step.
    gc.collect()
    gc.freeze()
    status = uvloop.run(_serve(settings, shape, size, stepper, store, Text(settings.model), listener))
    sys.stdout.flush()
    # Threads of LMCache may be stuck in a dead store; nothing that they still do matters.
    os._exit(status)


async def _serve(
    settings: ReferenceSettings,
    shape: ModelShape,
    size: Size,
    stepper: Stepper,
    store: KvStore | None,
    text: Text,
    listener: socket.socket,
) -> int:
    publisher = EventPublisher(
        EventSettings(settings.kv_events_host, settings.kv_events_port, settings.kv_events_replay_port),
        settings.block_size_tokens,
    )
    metrics = EngineMetrics(
        settings.served_model_name,
        blocks=size.blocks,
        block_size_tokens=settings.block_size_tokens,
        dtype=settings.dtype,
    )
    if store is not None:
        metrics.follow_store(lambda: store.failures)
    engine = _make_engine(settings, size, stepper, store, metrics, publisher)
    served = Served(
        settings.served_model_name,
        size.context_tokens,
        shape.vocab_tokens,
        shape.eos_token_ids,
        int(time.time()),
        stored_timeout_s=10 * settings.kv_timeout_s,
        event_source=publisher.source,
    )
    engine.start()
    publisher.start()
    await serve_app(ReferenceServer(engine, text, metrics, served).app(), listener, on_stop=lambda: None)
    await engine.aclose()
    await publisher.aclose()
    return 0


def _make_engine(
    settings: ReferenceSettings,
    size: Size,
    stepper: Stepper,
    store: KvStore | None,
    metrics: EngineMetrics,
    publisher: EventPublisher,
) -> ReferenceEngine:
    pool = BlockPool(size.blocks, settings.block_size_tokens)
    limits = StepLimits(
        step_tokens=settings.step_tokens,
        running_sequences=settings.max_sequences,
        store_chunk_tokens=settings.kv_chunk_tokens if store is not None else 0,
        min_fetch_tokens=settings.kv_min_fetch_tokens,
    )
    return ReferenceEngine(
        stepper,
        pool,
        Scheduler(pool, limits),
        role=settings.role,
        context_tokens=size.context_tokens,
        metrics=metrics,
        publisher=publisher,
        store=store,
    )


def _warm_up(stepper: Stepper, block_size_tokens: int) -> None:
    """The first step of a process pays for lazy set-up; the first request should not."""
    sequence = TokenSequence("warm-up", [0] * 2, Params(max_tokens=1), block_size_tokens, blocks=[0])
    works: Sequence[Work] = [Work(sequence, 0, 2, samples=True), Work(sequence, 1, 1, samples=True)]
    for work in works:
        stepper.step([work])
