"""What an engine process is started with."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from backends.transport.serving import parse_listen


@dataclass(frozen=True, slots=True)
class ReferenceSettings:
    """One engine process. ``kv_store`` None: no KV store; ``served_model_name`` is part of the keys in it."""

    role: Literal["prefill", "relay", "main"]
    model: Path
    host: str
    port: int
    served_model_name: str
    kv_store: str | None
    kv_chunk_tokens: int
    kv_timeout_s: float
    kv_min_fetch_tokens: int
    kv_ranks: int
    dtype: Literal["float32", "bfloat16"]
    threads: int
    block_size_tokens: int
    kv_cache_mib: int
    max_model_len: int | None
    step_tokens: int
    max_sequences: int
    min_step_s: float
    kv_events_host: str
    kv_events_port: int
    kv_events_replay_port: int
    die_with_parent: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``pdd engine``."""
    parser.add_argument("--role", required=True, choices=["prefill", "relay", "main"], help="decides what it stores")
    parser.add_argument("--model", required=True, type=Path, metavar="DIR", help="Llama or Qwen model directory")
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="port 0: any free port")
    parser.add_argument("--served-model-name", metavar="NAME", help="default: the directory's name")
    parser.add_argument("--kv-store", metavar="URL", help="redis:// URL of the region's KV store")
    parser.add_argument("--kv-chunk", type=_positive, default=64, metavar="TOKENS", help="chunk size in the store")
    parser.add_argument("--kv-timeout-s", type=float, default=2.0, metavar="S", help="bound of one store operation")
    parser.add_argument(
        "--kv-min-fetch", type=int, default=256, metavar="TOKENS", help="smaller gaps are computed, not fetched"
    )
    parser.add_argument(
        "--kv-ranks", type=_positive, default=1, metavar="N", help="store KV as N tensor-parallel ranks would"
    )
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=_positive, default=1, help="torch threads")
    parser.add_argument("--block-size", type=_positive, default=16, metavar="TOKENS", help="prefix cache block")
    parser.add_argument("--kv-cache-mib", type=_positive, default=512, metavar="MIB", help="bound of the KV pool")
    parser.add_argument("--max-model-len", type=_positive, metavar="TOKENS", help="default: what model and pool allow")
    parser.add_argument("--max-batched-tokens", type=_positive, default=512, metavar="TOKENS", help="tokens per step")
    parser.add_argument("--max-num-seqs", type=_positive, default=64, metavar="N", help="sequences per step")
    parser.add_argument(
        "--min-step-ms", type=float, default=0.0, metavar="MS", help="no step is shorter: a bigger model's pace"
    )
    parser.add_argument("--kv-events-host", default="127.0.0.1", metavar="HOST")
    parser.add_argument("--kv-events-port", type=int, default=0, metavar="PORT", help="0: any free port")
    parser.add_argument("--kv-events-replay-port", type=int, default=0, metavar="PORT", help="0: any free port")
    parser.add_argument("--die-with-parent", action="store_true", help="end when the starting process ends (Linux)")


def to_settings(args: argparse.Namespace) -> ReferenceSettings:
    """Checked settings. Raises ValueError with a message for the user."""
    try:
        host, port = parse_listen(args.listen)
    except ValueError as error:
        raise ValueError(f"--listen: {error}") from None
    if not (args.model / "config.json").is_file():
        raise ValueError(f"--model {args.model}: no config.json there")
    if args.kv_chunk % args.block_size:
        raise ValueError("--kv-chunk must be a multiple of --block-size")
    return ReferenceSettings(
        role=args.role,
        model=args.model,
        host=host,
        port=port,
        served_model_name=args.served_model_name or args.model.resolve().name,
        kv_store=args.kv_store,
        kv_chunk_tokens=args.kv_chunk,
        kv_timeout_s=args.kv_timeout_s,
        kv_min_fetch_tokens=args.kv_min_fetch,
        kv_ranks=args.kv_ranks,
        dtype=args.dtype,
        threads=args.threads,
        block_size_tokens=args.block_size,
        kv_cache_mib=args.kv_cache_mib,
        max_model_len=args.max_model_len,
        step_tokens=args.max_batched_tokens,
        max_sequences=args.max_num_seqs,
        min_step_s=args.min_step_ms / 1000,
        kv_events_host=args.kv_events_host,
        kv_events_port=args.kv_events_port,
        kv_events_replay_port=args.kv_events_replay_port,
        die_with_parent=args.die_with_parent,
    )


def _positive(value: str) -> int:
    number = int(value)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{value} is not positive")
    return number
