"""The watch over the event loop tells work from waiting for a processor."""

import asyncio

from prometheus_client import CollectorRegistry

from gateway.telemetry.loop import LoopWatch


def test_only_the_process_s_own_work_is_a_stall() -> None:
    """Being late without having had a processor is no stall; the worst one is kept."""
    registry = CollectorRegistry()
    watch = LoopWatch(registry)
    for late_s, used_s in ((5.0, 0.001), (0.3, 2.0), (0.05, 0.2), (0.001, 0.05)):
        watch.note(late_s, used_s)
    assert registry.get_sample_value("pdd_loop_worst_stall_seconds") == 0.3
    assert registry.get_sample_value("pdd_loop_stall_seconds_count") == 2


async def test_lag_is_smoothed_and_told() -> None:
    """The gauge follows lateness within a second; each tick tells how late it was, and the share of a processor."""
    registry = CollectorRegistry()
    told: list[tuple[float, float]] = []
    watch = LoopWatch(registry, on_tick=lambda *tick: told.append(tick))
    for _ in range(40):
        watch.note(0.05, 0.05)
    watch.show_metrics()
    assert told == [(0.05, 0.5)] * 40
    assert 0.04 < (registry.get_sample_value("pdd_loop_lag_seconds") or 0) < 0.05


async def test_the_watch_ticks() -> None:
    """A turn that takes all the processor's time is noticed at the next tick, and tasks are counted."""
    registry, now, used, ticked = CollectorRegistry(), [0.0], [0.0, 1.0, 1.0], asyncio.Event()

    def cpu_s() -> float:
        if len(used) == 2:
            ticked.set()
        return used.pop(0)

    watch = LoopWatch(registry, cpu_s, lambda: now[0])
    watch.start()
    now[0] = 1.05
    async with asyncio.timeout(5):
        await ticked.wait()
    watch.close()
    watch.show_metrics()
    assert registry.get_sample_value("pdd_loop_worst_stall_seconds") == 1.0
    assert registry.get_sample_value("pdd_loop_tasks") == len(asyncio.all_tasks())
