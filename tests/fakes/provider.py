"""An external provider that says what a test wrote down."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from backends.engines.external import ExternalChunk, ExternalModel, ExternalUsage
from backends.errors import BackendError
from tests.fakes.gates import HoldGate, Watch

Step = ExternalChunk | BackendError | HoldGate

USAGE = ExternalUsage(100, 2, 0.5)
SPOKEN: tuple[Step, ...] = (
    ExternalChunk(({"index": 0, "delta": {"role": "assistant", "content": "Hel"}},)),
    ExternalChunk(({"index": 0, "delta": {"content": "lo"}, "finish_reason": "stop"},)),
    ExternalChunk((), USAGE),
)
WHOLE: tuple[Step, ...] = (
    ExternalChunk(
        ({"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"},), USAGE
    ),
)


class FakeProvider:
    """Says ``steps``, else a short answer; remembers what it was asked, and counts what was closed."""

    def __init__(self) -> None:
        self.steps: Sequence[Step] | None = None
        self.asked: list[tuple[ExternalModel, Mapping[str, Any], bool]] = []
        self._closes = 0
        self._watch = Watch()

    async def closed(self, count: int = 1) -> None:
        """Wait until so many answers are over."""
        await self._watch.until(lambda: self._closes >= count)

    async def chat(
        self, model: ExternalModel, fields: Mapping[str, Any], *, stream: bool
    ) -> AsyncGenerator[ExternalChunk, None]:
        """See ``Provider.chat``."""
        self.asked.append((model, fields, stream))
        try:
            for step in self.steps if self.steps is not None else SPOKEN if stream else WHOLE:
                if isinstance(step, HoldGate):
                    await step.hold()
                elif isinstance(step, BackendError):
                    raise step
                else:
                    yield step
        finally:
            self._closes += 1
            self._watch.changed()
