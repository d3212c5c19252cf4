"""One step of the engine: run the model, draw the tokens."""

from collections.abc import Sequence

from backends.engines.reference.model import ModelRunner
from backends.engines.reference.sampler import Sampled, Sampler
from backends.engines.reference.scheduler import Work


class Stepper:
    """What the engine's model thread calls."""

    def __init__(self, runner: ModelRunner, sampler: Sampler) -> None:
        self._runner = runner
        self._sampler = sampler

    def step(self, work: Sequence[Work]) -> list[Sampled]:
        """Compute the KV of all tokens of ``work``; one token for each item that samples, in order."""
        logits = self._runner.forward(work)
        return self._sampler.sample(logits, [item.sequence for item in work if item.samples])
