"""What one and two bridge processes move without a shaped link, beside a raw copy from socket to socket.

A core's worth is bits by CPU seconds of the process itself, so that it does not tell how busy the machine is. The rates
by the clock do: stores, bridges and this process share its cores.
"""

import asyncio
import os
import socket
import threading
import time

import redis.asyncio

from backends.kv.bridge.client import BridgePath
from backends.kv.bridge.fan import FannedPath
from backends.kv.bridge.keys import DIALECTS, KeyRequest
from backends.types import TransferRequest
from tests.backends.kv.bridge.commands import run_command
from tests.bench.bench_bridge import cpu_s
from tests.valkey import run_valkey

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


async def move(workers: int) -> tuple[float, float]:
    """Move a prompt's KV from store to store; Gbit/s a core of the bridge's processes, and by the clock."""
    token_ids = [number % 50_000 for number in range(CHUNKS * CHUNK_TOKENS)]
    async with run_valkey() as source, run_valkey() as dest:
        async with redis.asyncio.Redis.from_url(source) as client:
            value = os.urandom(CHUNK_BYTES)
            for key in DIALECTS["lmcache-mp"].chunk_keys(KeyRequest("bench", token_ids, CHUNK_TOKENS)):
                await client.set(key, value)
        arguments = ["--source", source, "--dest", dest, f"--workers={workers}"]
        async with run_command("backends.kv.bridge.command", *arguments, listeners=workers) as bridge:
            pids = _processes(bridge.process.pid, workers)
            paths = [BridgePath(url, part=(number, workers)) for number, url in enumerate(bridge.urls)]
            path = FannedPath(paths)
            begun_s, begun_cpu_s = time.perf_counter(), sum(map(cpu_s, pids))
            async for progress in path.transfer(TransferRequest("b", "lmcache-mp", "bench", token_ids, CHUNK_TOKENS)):
                moved = progress.wan_bytes
            used_s, elapsed_s = sum(map(cpu_s, pids)) - begun_cpu_s, time.perf_counter() - begun_s
            await path.aclose()
    return moved * 8 / used_s / 1e9, moved * 8 / elapsed_s / 1e9


def _processes(pid: int, workers: int) -> list[int]:
    if workers == 1:
        return [pid]
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:
        return [int(child) for child in children.read().split()]


def _load() -> float:
    return os.getloadavg()[0]


def run() -> dict[str, float]:
    """Measure all three, in turns; print the medians."""
    names = ("raw", "1 worker", "2 workers")
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for _ in range(ROUNDS):
        taken["raw"].append(copy_raw())
        for workers in (1, 2):
            taken[names[workers]].append(asyncio.run(move(workers)))
    print(f"{CHUNKS} chunks of {CHUNK_BYTES >> 20} MiB from store to store; {os.cpu_count()} cores, load {_load():.1f}")
    print(f"{'':>10} {'Gbit/s a core':>14} {'by the clock':>13}")
    medians = {}
    for name, results in taken.items():
        medians[name] = [sorted(column)[ROUNDS // 2] for column in zip(*results, strict=True)]
        print(f"{name:>10} {medians[name][0]:>14.1f} {medians[name][1]:>13.1f}")
    return {
        "bridge_gbit_per_core": medians["1 worker"][0],
        "bridge_gbit_1_worker": medians["1 worker"][1],
        "bridge_gbit_2_workers": medians["2 workers"][1],
        "bridge_gbit_2_workers_per_core": medians["2 workers"][0],
        "raw_copy_gbit_per_core": medians["raw"][0],
        "raw_copy_gbit": medians["raw"][1],
    }


if __name__ == "__main__":
    run()
