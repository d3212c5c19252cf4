"""The events of a request's answers in one stream."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from gateway.relay.types import Answer, AnswerEvent

QUEUED_EVENTS = 4

Numbered = tuple[int, AnswerEvent]


def merge(answers: Sequence[Answer]) -> AsyncGenerator[Numbered, None]:
    """Yield (choice, event), in order for each choice, until all ended. Raises the first GatewayError."""
    return follow(answers[0]) if len(answers) == 1 else interleave(answers)


async def follow(answer: Answer) -> AsyncGenerator[Numbered, None]:
    """Yield a single answer's events."""
    async for event in answer:
        yield 0, event


async def interleave(answers: Sequence[Answer]) -> AsyncGenerator[Numbered, None]:
    """Yield several answers' events as they come; no answer runs far ahead of a client that reads slowly."""
    queue: asyncio.Queue[Numbered | int] = asyncio.Queue()
    room = [asyncio.Semaphore(QUEUED_EVENTS) for _ in answers]

    async def pump(index: int) -> None:
        async for event in answers[index]:
            await room[index].acquire()
            queue.put_nowait((index, event))

    pumps = [asyncio.create_task(pump(index)) for index in range(len(answers))]
    places = {task: index for index, task in enumerate(pumps)}
    for task in pumps:
        task.add_done_callback(lambda ended: queue.put_nowait(places[ended]))
    try:
        running = len(pumps)
        while running:
            entry = await queue.get()
            if isinstance(entry, int):
                running -= 1
                await pumps[entry]
            else:
                room[entry[0]].release()
                yield entry
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
