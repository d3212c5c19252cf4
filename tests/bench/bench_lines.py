"""What one and two bridge processes move without a shaped link, beside a raw copy from socket to socket.

A core's worth is bits by CPU seconds of the process itself, so that it does not tell how busy the machine is. The rates
by the clock do: stores, bridges and this process share its cores. So it is told how many of them each part had, and
from that at what rate each would be full: all cores, a store (which works in one thread), the bridge's processes.
Further workers bring something only where the bridge is full first.
"""

import asyncio
import os
import socket
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis.asyncio

from backends.kv.bridge.client import BridgePath
from backends.kv.bridge.fan import FannedPath
from backends.kv.bridge.keys import DIALECTS, KeyRequest
from backends.transport.valkey import EmbeddedValkey
from backends.types import TransferRequest
from tests.backends.kv.bridge.commands import run_command
from tests.bench.bench_bridge import cpu_s

CHUNK_TOKENS = 256
CHUNK_BYTES = 5 << 20
CHUNKS = 100
ROUNDS = 3
PIECE_BYTES = 1 << 20
TOTAL_BYTES = CHUNKS * CHUNK_BYTES


def connected() -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        return near, listener.accept()[0]


def copy_raw() -> tuple[float, float]:
    """Copy from one socket to another in this thread, with a thread at either end; Gbit/s a core and by the clock."""
    (near, source), (sink, far) = connected(), connected()

    def give() -> None:
        piece = memoryview(bytes(PIECE_BYTES))
        for _ in range(TOTAL_BYTES // PIECE_BYTES):
            source.sendall(piece)
        source.close()

    def take() -> None:
        room = memoryview(bytearray(PIECE_BYTES))
        while sink.recv_into(room):
            pass

    threads = [threading.Thread(target=give), threading.Thread(target=take)]
    for thread in threads:
        thread.start()
    room = memoryview(bytearray(PIECE_BYTES))
    begun_s, begun_cpu_s = time.perf_counter(), time.thread_time()
    while count := near.recv_into(room):
        far.sendall(room[:count])
    used_s, elapsed_s = time.thread_time() - begun_cpu_s, time.perf_counter() - begun_s
    far.close()
    for thread in threads:
        thread.join()
    for end in (near, sink):
        end.close()
    return TOTAL_BYTES * 8 / used_s / 1e9, TOTAL_BYTES * 8 / elapsed_s / 1e9


@dataclass(frozen=True, slots=True)
class Moved:
    """Gbit/s a core of the bridge's processes and by the clock, and how many cores each part kept busy."""

    per_core: float
    gbit: float
    cores: dict[str, float]

    def bounds(self, workers: int) -> dict[str, float]:
        """Gbit/s at which each is full, by the CPU time that it took; the least first."""
        full = {"all cores": sum(self.cores.values()) / (os.cpu_count() or 1), "bridge": self.cores["bridge"] / workers}
        full |= {name: share for name, share in self.cores.items() if name.endswith("store")}
        return dict(sorted(((name, self.gbit / share) for name, share in full.items()), key=lambda one: one[1]))


async def move(workers: int) -> Moved:
    """Move a prompt's KV from store to store."""
    token_ids = [number % 50_000 for number in range(CHUNKS * CHUNK_TOKENS)]
    async with EmbeddedValkey() as source, EmbeddedValkey() as dest:
        async with redis.asyncio.Redis.from_url(source.url) as client:
            value = os.urandom(CHUNK_BYTES)
            for key in DIALECTS["lmcache-mp"].chunk_keys(KeyRequest("bench", token_ids, CHUNK_TOKENS)):
                await client.set(key, value)
        arguments = ["--source", source.url, "--dest", dest.url, f"--workers={workers}"]
        async with run_command("backends.kv.bridge.command", *arguments, listeners=workers) as bridge:
            parts = {
                "sending store": [source.pid],
                "bridge": _processes(bridge.process.pid, workers),
                "receiving store": [dest.pid],
                "this process": [os.getpid()],
            }
            path = FannedPath([BridgePath(url, part=(number, workers)) for number, url in enumerate(bridge.urls)])
            begun_s, before = time.perf_counter(), _used_s(parts)
            async for progress in path.transfer(TransferRequest("b", "lmcache-mp", "bench", token_ids, CHUNK_TOKENS)):
                moved = progress.wan_bytes
            elapsed_s, after = time.perf_counter() - begun_s, _used_s(parts)
            await path.aclose()
    used_s = {name: after[name] - before[name] for name in parts}
    gbit = moved * 8 / 1e9
    return Moved(gbit / used_s["bridge"], gbit / elapsed_s, {name: used_s[name] / elapsed_s for name in parts})


def _used_s(parts: Mapping[str, Sequence[int]]) -> dict[str, float]:
    return {name: sum(map(cpu_s, pids)) for name, pids in parts.items()}


def _processes(pid: int, workers: int) -> list[int]:
    if workers == 1:
        return [pid]
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:
        return [int(child) for child in children.read().split()]


def _load() -> float:
    return os.getloadavg()[0]


def run() -> dict[str, Any]:
    """Measure all three, in turns; print the medians, and who had the cores meanwhile."""
    raw: list[tuple[float, float]] = []
    moves: dict[int, list[Moved]] = {1: [], 2: []}
    for _ in range(ROUNDS):
        raw.append(copy_raw())
        for workers, taken in moves.items():
            taken.append(asyncio.run(move(workers)))
    print(f"{CHUNKS} chunks of {CHUNK_BYTES >> 20} MiB from store to store; {os.cpu_count()} cores, load {_load():.1f}")
    print(f"{'':>10} {'Gbit/s a core':>14} {'by the clock':>13}  cores that were busy with it")
    raw_core, raw_clock = (statistics.median(column) for column in zip(*raw, strict=True))
    print(f"{'raw':>10} {raw_core:>14.1f} {raw_clock:>13.1f}")
    one, two = (_middle(taken) for taken in moves.values())
    for workers, moved in ((1, one), (2, two)):
        busy = ", ".join(f"{name} {share:.2f}" for name, share in moved.cores.items())
        name = f"{workers} worker{'s' if workers > 1 else ''}"
        print(f"{name:>10} {moved.per_core:>14.1f} {moved.gbit:>13.1f}  {sum(moved.cores.values()):.2f}: {busy}")
        full = ", ".join(f"{part} at {gbit:.1f}" for part, gbit in moved.bounds(workers).items())
        print(f"{'':>10} full, in Gbit/s: {full}")
    return {
        "bridge_gbit_per_core": one.per_core,
        "bridge_gbit_1_worker": one.gbit,
        "bridge_gbit_2_workers": two.gbit,
        "bridge_gbit_2_workers_per_core": two.per_core,
        "bridge_full_at_1_worker": one.bounds(1),
        "bridge_full_at_2_workers": two.bounds(2),
        "bridge_cores_1_worker": one.cores,
        "bridge_cores_2_workers": two.cores,
        "raw_copy_gbit_per_core": raw_core,
        "raw_copy_gbit": raw_clock,
    }


def _middle(taken: Sequence[Moved]) -> Moved:
    """The run whose rate is in the middle."""
    return sorted(taken, key=lambda moved: moved.gbit)[len(taken) // 2]


if __name__ == "__main__":
    run()
