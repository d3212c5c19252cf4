"""One request inside the engine: its tokens, its blocks, and how far its KV is computed."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from backends.engines.reference.blocks import BlockHash, chain_hashes, root_hash


class SequencePhase(enum.Enum):
    """Where a sequence is in its life; only the scheduler moves it on."""

    WAITING = enum.auto()
    FETCHING = enum.auto()
    RUNNING = enum.auto()
    DONE = enum.auto()


@dataclass(frozen=True, slots=True)
class Params:
    """What to generate and how; every field is checked before a sequence is made."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop_token_ids: frozenset[int] = frozenset()
    eos_token_ids: frozenset[int] = frozenset()
    """Empty when the request ignores EOS."""
    logprobs: int | None = None
    cache_salt: str | None = None
    priority: int = 0
    """Lower is served first."""


@dataclass(eq=False, slots=True)
class Sequence:
    """``tokens`` is prompt + output. KV exists for the first ``computed_tokens`` of them, in ``blocks``."""

    id: str
    tokens: list[int]
    params: Params
    block_size_tokens: int
    arrival: int = 0
    phase: SequencePhase = SequencePhase.WAITING
    prompt_tokens: int = 0
    computed_tokens: int = 0
    cached_tokens: int | None = None
    """Prompt tokens whose KV was not computed for this request; None until it was first admitted."""
    blocks: list[int] = field(default_factory=list)
    committed_blocks: int = 0
    aborted: bool = False
    _hashes: list[BlockHash] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.tokens)

    @property
    def output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def pending_tokens(self) -> int:
        """Tokens that have no KV yet; 1 for a sequence that decodes."""
        return len(self.tokens) - self.computed_tokens

    def full_hashes(self, tokens: int) -> list[BlockHash]:
        """Hashes of the blocks that the first ``tokens`` tokens fill; computed once each."""
        size = self.block_size_tokens
        count = tokens // size
        known = len(self._hashes)
        if known < count:
            parent = self._hashes[-1] if known else root_hash(self.params.cache_salt)
            self._hashes += chain_hashes(parent, self.tokens[known * size : count * size], size)
        return self._hashes[:count]
