"""Workers of one command answer for each other."""

import asyncio
from functools import partial
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from gateway.telemetry.metrics import Metrics
from gateway.telemetry.siblings import Siblings, merge_pages


def test_one_page_has_the_samples_of_all_workers() -> None:
    """A merged page can be read by Prometheus, says each family once, and has the samples of each worker."""
    pages = {}
    for number in (0, 1):
        metrics = Metrics()
        metrics.refused.labels('odd "reason" {of} a\\client').inc(number + 1)
        metrics.waiting.set(5)
        pages[number] = metrics.exposition()
    families = list(text_string_to_metric_families(merge_pages(pages).decode()))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    values = {(sample.name, sample.labels["worker"]): sample.value for one in families for sample in one.samples}
    assert [values["pdd_refused_total", str(number)] for number in (0, 1)] == [1, 2]
    assert [values["pdd_waiting", str(number)] for number in (0, 1)] == [5, 5]
    alone = {sample.name for one in text_string_to_metric_families(pages[0].decode()) for sample in one.samples}
    assert alone == {name for name, _ in values}


def answer(number: int, question: str) -> bytes:
    """Worker 2 knows nothing."""
    return b"" if number == 2 else f"{number} {question}".encode()


async def test_a_worker_asks_those_that_are_there(tmp_path: Path) -> None:
    """Who answers nothing, was killed or has ended is left out, and a worker that comes again takes its place back."""
    workers = [Siblings(tmp_path, number, 4) for number in range(3)]
    for number, worker in enumerate(workers):
        await worker.start(partial(answer, number))
    await asyncio.to_thread((tmp_path / "3.sock").touch)
    assert await workers[0].ask("x\ny") == {1: b"1 x\ny"}
    await workers[1].aclose()
    assert await workers[0].ask("x") == {}
    again = Siblings(tmp_path, 0, 4)
    await again.start(lambda question: b"again")
    assert await workers[2].ask("x") == {0: b"again"}
    for worker in (workers[0], workers[2], again):
        await worker.aclose()
