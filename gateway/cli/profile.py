"""``pdd profile``: an engine's prefill time against uncached tokens, measured, with its steps and valleys."""

import argparse
import asyncio
import os
import random
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from backends.base import Engine
from backends.engines.adapters import BadEngine, EngineSpec, build_engine
from backends.errors import BackendError, EngineRejected, EngineTimeout
from backends.types import LegChunk, LegRequest, Sampling
from gateway.fleet.curves import CurveFile, Measured, write_curve
from policies.valley import PrefillCurve, find_steps, find_valleys

LEAST_ID = 10
"""Ids below are special tokens in many vocabularies."""
JUST_PAST_TOKENS = 16
LENGTHS = tuple(sorted(length for power in range(6, 14) for length in (2**power, 2**power + JUST_PAST_TOKENS)))
"""Powers of two and lengths just past them, where a step's leftover is small."""
BLOCK_TOKENS = 16
REUSE_SLACK_TOKENS = 64
"""An engine that computed so much more than was new did not reuse the prefix."""

Point = tuple[float, int]
"""Hit rate and uncached tokens of a prompt."""


class CannotProfile(Exception):
    """There is no curve; the message is for the user."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--engine", required=True, metavar="URL", help="base URL of the engine, which should be idle")
    parser.add_argument("--model", required=True, metavar="NAME", help="as the engine serves it")
    parser.add_argument("--kind", default="vllm", metavar="NAME", help="as engines[].kind (default: %(default)s)")
    parser.add_argument("--options", type=_options, default={}, metavar="JSON", help="as engines[].options")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the curve there, for engines[].prefill_curve")
    parser.add_argument("--api-key-env", metavar="VARIABLE", help="environment variable with the engine's key")
    parser.add_argument(
        "--lengths", type=_lengths, default=LENGTHS, metavar="N,N,...", help="uncached tokens (default: 64 to 8208)"
    )
    parser.add_argument(
        "--hit-rates", type=_rates, default=(0.0, 0.5, 0.9), metavar="X,X,...", help="shares (default: 0,0.5,0.9)"
    )
    parser.add_argument("--repeats", type=_positive, default=3, metavar="N", help="tries of each (default: 3)")
    parser.add_argument("--budget-s", type=float, default=120.0, metavar="S", help="time for it all (default: 120)")
    parser.add_argument(
        "--vocabulary", type=_vocabulary, default=1000, metavar="N", help="random ids stay below (default: 1000)"
    )


def run(args: argparse.Namespace) -> int:
    """Measure, print, write; the exit status."""
    try:
        key = os.environ[args.api_key_env] if args.api_key_env else None
        engine = build_engine(args.kind, EngineSpec("profiled", args.engine, key, args.options))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            curve, skipped = runner.run(_profile(engine, args))
        print("\n".join(describe(curve, skipped)))
        if args.out is not None:
            write_curve(args.out, curve)
            print(f"written to {args.out}")
    except KeyError as error:
        print(f"pdd profile: {error.args[0]} is not set", file=sys.stderr)
    except EngineRejected as error:
        print(f"pdd profile: {error}: {error.message}", file=sys.stderr)
    except (BackendError, BadEngine, CannotProfile, ValueError, OSError) as error:
        print(f"pdd profile: {error}", file=sys.stderr)
    else:
        return 0
    return 1


async def _profile(engine: Engine, args: argparse.Namespace) -> tuple[CurveFile, int]:
    try:
        found = await engine.probe()
        if args.model not in found.models:
            raise CannotProfile(f"the engine serves {', '.join(found.models) or 'nothing'}, not {args.model}")
        load = await engine.load()
        if load.running + load.waiting:
            print("the engine is busy: times will be longer than they are when it is idle", file=sys.stderr)
        block = found.block_size_tokens or BLOCK_TOKENS
        profiler = Profiler(engine, args.model, block, args.vocabulary, random.Random(), time.perf_counter)
        room = found.max_model_len or sys.maxsize
        points = plan_points(args.lengths, args.hit_rates, room - 1)
        await profiler.measure(points, args.repeats, args.budget_s)
    finally:
        await engine.aclose()
    return profiler.curve_file(args.engine), profiler.skipped


def plan_points(lengths: Sequence[int], rates: Sequence[float], room_tokens: int) -> list[Point]:
    """Return what to measure, short prompts first, none longer than ``room_tokens``; some of all have no hit."""
    points = [(rate, length) for rate in {0.0, *rates} for length in set(lengths)]
    fitting = [point for point in points if prompt_tokens(*point) <= room_tokens]
    return sorted(fitting, key=lambda point: (prompt_tokens(*point), point))


def prompt_tokens(rate: float, uncached_tokens: int) -> int:
    """Length of a prompt of which the share ``rate`` is cached."""
    return round(uncached_tokens / (1 - rate))


@dataclass(slots=True)
class Profiler:
    """Sends prompts of random ids to one engine. ``clock`` gives seconds."""

    engine: Engine
    model: str
    block_tokens: int
    vocabulary: int
    rng: random.Random
    clock: Callable[[], float]
    times_s: dict[Point, list[float]] = field(default_factory=dict)
    skipped: int = 0
    """Tries left out: no time was left, or the engine did not reuse the prefix."""

    async def measure(self, points: Sequence[Point], repeats: int, budget_s: float) -> None:
        """Try each point ``repeats`` times, round by round, until the time is over. Raises BackendError."""
        end_s = self.clock() + budget_s
        todo = [point for _ in range(repeats) for point in points]
        try:
            await self._send(self._ids(self.block_tokens), end_s)
            for point in todo:
                if self.clock() >= end_s:
                    break
                await self._try(point, end_s)
        except EngineTimeout:
            if self.clock() < end_s:
                raise
        self.skipped = len(todo) - sum(map(len, self.times_s.values()))

    async def _try(self, point: Point, end_s: float) -> None:
        rate, new_tokens = point
        cached = (prompt_tokens(rate, new_tokens) - new_tokens) // self.block_tokens * self.block_tokens
        prefix = self._ids(cached)
        if cached:
            await self._send(prefix, end_s)
        seconds, reused = await self._send(prefix + self._ids(new_tokens), end_s)
        if reused is None or reused + REUSE_SLACK_TOKENS >= cached:
            self.times_s.setdefault(point, []).append(seconds)

    async def _send(self, prompt: list[int], end_s: float) -> tuple[float, int | None]:
        """Ask for one token; seconds until it came, and how many tokens were cached (None: it does not say)."""
        wait_s = max(0.1, end_s - self.clock())
        sampling = Sampling(temperature=0.0, ignore_eos=True)
        leg = LegRequest(
            f"profile-{uuid.uuid4().hex}", self.model, prompt, 1, sampling=sampling, first_token_timeout_s=wait_s
        )
        seconds, reused = None, None
        start_s = self.clock()

        def take(chunk: LegChunk) -> None:
            nonlocal seconds, reused
            if chunk.token_ids and seconds is None:
                seconds = self.clock() - start_s
            if chunk.usage is not None:
                reused = chunk.usage.cached_tokens

        await self.engine.generate(leg, take)
        if seconds is None:
            raise CannotProfile("the engine ended without a token")
        return seconds, reused

    def _ids(self, count: int) -> list[int]:
        return self.rng.choices(range(LEAST_ID, self.vocabulary), k=count)

    def curve_file(self, engine_url: str) -> CurveFile:
        """Return the medians. Raises CannotProfile where too little was measured."""
        medians = {point: statistics.median(times) for point, times in sorted(self.times_s.items())}
        cold = {tokens: seconds for (rate, tokens), seconds in medians.items() if rate == 0}
        if len(cold) < 2:
            raise CannotProfile("fewer than two lengths were measured: give it more time, or shorter lengths")
        measured = tuple(
            Measured(rate, prompt_tokens(rate, tokens), tokens, seconds, len(self.times_s[rate, tokens]))
            for (rate, tokens), seconds in medians.items()
        )
        return CurveFile(tuple(cold), tuple(cold.values()), engine_url, self.model, measured)


def describe(curve: CurveFile, skipped: int) -> list[str]:
    """Give what was measured as lines to read: a table, then where the steps and valleys are."""
    rates = sorted({one.hit_rate for one in curve.measured})
    times = {(one.hit_rate, one.uncached_tokens): one.seconds for one in curve.measured}
    lines = ["milliseconds to the first token", "uncached" + "".join(f"{f'hit {rate:.0%}':>12}" for rate in rates)]
    for length in sorted({one.uncached_tokens for one in curve.measured}):
        cells = (times.get((rate, length)) for rate in rates)
        lines.append(f"{length:8}" + "".join(f"{'-' if time is None else f'{time * 1e3:.2f}':>12}" for time in cells))
    for rate in rates:
        lines += _describe_shape(rate, {length: seconds for (one, length), seconds in times.items() if one == rate})
    if skipped:
        lines.append(f"{skipped} tries were left out: no time (--budget-s), or no reuse of the prefix")
    return lines


def _describe_shape(rate: float, times: dict[int, float]) -> list[str]:
    if len(times) < 2:
        return []
    curve = PrefillCurve(tuple(sorted(times)), tuple(times[length] for length in sorted(times)))
    lines = [
        f"hit {rate:.0%}: step of {step.jump_s * 1e3:.2f} ms between {step.from_tokens} and {step.to_tokens} tokens"
        for step in find_steps(curve)
    ]
    valleys = find_valleys(curve)
    lines += [
        f"hit {rate:.0%}: valley at {valley.from_tokens} to {valley.to_tokens} uncached tokens: up to "
        f"{valley.excess_s * 1e3:.2f} ms more than {valley.better_tokens} take"
        for valley in valleys
    ]
    return lines if valleys else [*lines, f"hit {rate:.0%}: no valley"]


def _options(text: str) -> dict[str, Any]:
    return msgspec.json.decode(text, type=dict[str, Any])


def _positive(text: str) -> int:
    return _at_least(1, text)


def _vocabulary(text: str) -> int:
    return _at_least(LEAST_ID + 1, text)


def _at_least(least: int, text: str) -> int:
    value = int(text)
    if value < least:
        raise ValueError
    return value


def _lengths(text: str) -> tuple[int, ...]:
    return tuple(map(_positive, text.split(",")))


def _rates(text: str) -> tuple[float, ...]:
    rates = tuple(map(float, text.split(",")))
    if not all(0 <= rate < 1 for rate in rates):
        raise ValueError
    return rates
