"""A scripted Generator: answers whose events, waits and failures a test writes down."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backends.types import TokenLogprob
from gateway.relay.types import AnswerSink, Finish, GenerationRequest, Tokens
from tests.fakes.gates import HoldGate, Watch


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """A sign of life."""


Step = Tokens | KeepAlive | Finish | Exception | HoldGate
"""One step of an answer: something to give, a failure to raise, a gate to wait at."""


class ScriptedAnswer:
    """Gives its steps. ``stopped_at``: what ``stop_at`` was told; ``closes``: how often it was closed."""

    plan_name = "relay"
    plan_reason = "scripted"

    def __init__(self, request: GenerationRequest, steps: Sequence[Step], watch: Watch) -> None:
        self.request = request
        self.stopped_at: int | None = None
        self.closes = 0
        self.closing: HoldGate | None = None
        """Where a close waits for its end."""
        self.given = 0
        self._steps = steps
        self._watch = watch

    async def run(self, sink: AnswerSink) -> None:
        """Give what there is up to a Finish, as fast as there is room for it."""
        for step in self._steps:
            await sink.room.wait()
            if self.stopped_at is not None:
                sink.finish(Finish("stop", False, None, self.stopped_at, 0))
                return
            match step:
                case HoldGate():
                    await step.hold()
                case Exception():
                    raise step
                case Tokens():
                    sink.take(step)
                case KeepAlive():
                    sink.keep_alive()
                case Finish():
                    sink.finish(step)
            self.given += not isinstance(step, HoldGate)

    def stop_at(self, completion_tokens: int) -> None:
        """Note the stop."""
        assert self.stopped_at is None
        self.stopped_at = completion_tokens

    async def aclose(self) -> None:
        """Note the close."""
        self.closes += 1
        self._watch.changed()
        if self.closing is not None:
            await self.closing.hold()


class ScriptedGenerator:
    """Answers each request by ``script``, which may raise GatewayError; remembers requests and answers."""

    def __init__(self, script: Callable[[GenerationRequest], Sequence[Step]]) -> None:
        self.script = script
        self.answers: list[ScriptedAnswer] = []
        self._watch = Watch()

    @property
    def requests(self) -> list[GenerationRequest]:
        """The requests that were started."""
        return [answer.request for answer in self.answers]

    def generate(self, request: GenerationRequest) -> ScriptedAnswer:
        """Start an answer."""
        answer = ScriptedAnswer(request, self.script(request), self._watch)
        self.answers.append(answer)
        self._watch.changed()
        return answer

    async def started(self, count: int) -> None:
        """Wait until so many answers were started."""
        await self._watch.until(lambda: len(self.answers) >= count)

    async def all_closed(self) -> None:
        """Wait until every answer was closed."""
        await self._watch.until(lambda: all(answer.closes for answer in self.answers))


def say(
    ids: Sequence[int],
    chunks: Sequence[int] = (),
    *,
    finish: Finish | None = None,
    cached_tokens: int | None = 0,
    with_logprobs: bool = False,
) -> list[Step]:
    """Return the steps of an answer: the first id by P, then chunks (1 where none is named) by RLD, the last by MD.

    ``finish`` None: it stopped with its last id, which is no terminator.
    """
    steps: list[Step] = []
    at = 0
    sizes = iter(chunks)
    while at < len(ids):
        part = tuple(ids[at : at + next(sizes, 1)])
        role = "P" if at == 0 else "MD" if at + len(part) >= len(ids) else "RLD"
        logprobs = tuple(TokenLogprob(i, -0.5, ((i, -0.5), (i + 1, -1.5))) for i in part) if with_logprobs else None
        steps.append(Tokens(at, part, logprobs, role, f"{role.lower()}-1"))
        at += len(part)
    steps.append(finish or Finish("stop", False, None, len(ids), cached_tokens))
    return steps
