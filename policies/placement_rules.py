"""The rules of placement: how much each signal weighs where a role is filled."""

from typing import Annotated

from msgspec import Meta

from policies.section import Section

Weight = Annotated[float, Meta(ge=0, le=100)]


class Weights(Section, frozen=True):
    """Weight of each signal in a placement. 0: the signal is not used; at least one must be above 0."""

    def __post_init__(self) -> None:
        if not any(getattr(self, name) for name in self.__struct_fields__):
            raise ValueError("at least one weight must be above 0")


Prefix = Annotated[
    Weight, Meta(description="Share of the prompt in cache, less where the instance is busier than others.")
]
Queue = Annotated[Weight, Meta(description="Room in the engine's batch.")]
KvRoom = Annotated[Weight, Meta(description="Free KV memory.")]
Session = Annotated[Weight, Meta(description="The instance served this conversation before.")]
Wan = Annotated[Weight, Meta(description="How soon missing KV would cross, against the best candidate.")]
Prefill = Annotated[Weight, Meta(description="Prefill time by the measured curve, against the best candidate.")]


class PrefillWeights(Weights, frozen=True):
    """Weights for choosing P."""

    prefix: Prefix = 1.0
    queue: Queue = 1.0
    kv: KvRoom = 0.25
    session: Session = 0.25
    wan: Wan = 0.5
    prefill: Prefill = 1.5


class RelayWeights(Weights, frozen=True):
    """Weights for choosing RLD."""

    prefix: Prefix = 0.25
    queue: Queue = 1.5
    kv: KvRoom = 0.5
    session: Session = 0.25


class MainWeights(Weights, frozen=True):
    """Weights for choosing MD."""

    prefix: Prefix = 1.5
    queue: Queue = 1.0
    kv: KvRoom = 0.5
    session: Session = 0.5
    wan: Wan = 1.0


class PlacementRules(Section, frozen=True):
    """How instances are chosen: each role by its own weights."""

    prefill: PrefillWeights = PrefillWeights()
    relay: RelayWeights = RelayWeights()
    main: MainWeights = MainWeights()
    tie_margin: Annotated[
        float,
        Meta(
            ge=0, le=0.5, description="Candidates whose totals are this close to the best are a tie, broken at random."
        ),
    ] = 0.02
    kv_usage_max: Annotated[
        float,
        Meta(gt=0, le=1, description="Instances with more of their KV memory in use are left out while others remain."),
    ] = 0.98
