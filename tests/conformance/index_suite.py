"""What every ``PrefixIndex`` must do. Subclass ``IndexSuite`` in a test module and give it a ``rig`` fixture."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import msgspec
import pytest

from gateway.index.ingest import IngestTimes
from gateway.index.types import CacheHit, CacheSpec, PrefixIndex
from tests.gateway.index.publisher import CLEARED, Publisher, encode_batch, removed, run_publisher, stored

MODEL = "qwen"
TIMES = IngestTimes(idle_s=60.0, replay_timeout_s=1.0, rebuild_s=600.0)
PROMPT = list(range(1000, 1000 + 161))
"""Ten blocks of 16 and the token that an engine always computes."""
HASHES = list(range(1, 11))


class Clock:
    """Time that the test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Changes:
    """Told of every change of an index; waits for what the test expects."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def __call__(self) -> None:
        self._event.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` holds; at most 10 s."""
        async with asyncio.timeout(10):
            while not condition():
                self._event.clear()
                await self._event.wait()


@dataclass
class Rig:
    """An index under test, not started yet, with its seams."""

    index: PrefixIndex
    changes: Changes
    clock: Clock
    predicted_ttl_s: float = 100.0
    resources: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def publisher(
        self, instance_id: str = "md1", *, block_size: int = 16, replay: bool = True, buffer_steps: int = 1000
    ) -> Publisher:
        """Start a publisher and track it as an instance; a subscription has arrived when this returns."""
        publisher = await self.resources.enter_async_context(run_publisher(replay=replay, buffer_steps=buffer_steps))
        self.index.add_instance(CacheSpec(instance_id, MODEL, block_size, (publisher.source,)))
        await publisher.wait_for_subscriber()
        return publisher

    def hit(self, instance_id: str = "md1", prompt: Sequence[int] = PROMPT, **names: str) -> CacheHit:
        """Look one instance's hit up."""
        return self.index.lookup(MODEL, prompt, **names)[instance_id]

    async def until_tokens(self, tokens: int | None, instance_id: str = "md1") -> None:
        """Wait until the prompt's hit is ``tokens``."""
        await self.changes.until(lambda: self.hit(instance_id).tokens == tokens)

    async def until_ranks(self, *tokens: int, instance_id: str = "md1") -> None:
        """Wait until the prompt's hits of the ranks are ``tokens``."""
        await self.changes.until(lambda: self.hit(instance_id).ranks == tokens)

    async def until_count(self, counter: str, count: int) -> None:
        """Wait until a counter has reached ``count``."""
        await self.changes.until(lambda: self.count(counter) >= count)

    def count(self, counter: str) -> int:
        """Return a counter of the index."""
        return self.index.stats().counters.get(counter, 0)


class IndexSuite:
    """Tests over the fixture ``rig``, a ``Rig`` whose index was started."""

    async def test_stored_blocks_are_a_hit(self, rig: Rig) -> None:
        """Blocks that the engine stored count from the start of the prompt."""
        engine = await rig.publisher()
        await engine.publish(stored(HASHES[:4], PROMPT[:64]), stored(HASHES[4:5], PROMPT[64:80], parent=4))
        await rig.until_tokens(80)
        assert rig.hit() == CacheHit(80, 80, predicted=False)
        assert rig.hit(prompt=[7, *PROMPT]).tokens == 0

    async def test_instance_without_history_is_unknown(self, rig: Rig) -> None:
        """Where the engine's earlier events cannot be had the hit is None, never 0; what was seen is a lower bound."""
        engine = await rig.publisher(replay=False)
        assert rig.hit().tokens is None
        await engine.publish(stored([99], range(16)), lost=True)
        await engine.publish(stored(HASHES[:2], PROMPT[:32]))
        await rig.changes.until(lambda: rig.hit().at_least_tokens == 32)
        assert rig.hit() == CacheHit(None, 32, predicted=False)

    async def test_history_is_replayed_at_the_start(self, rig: Rig) -> None:
        """Events from before the index was there come from the engine's replay buffer."""
        publisher = await rig.resources.enter_async_context(run_publisher())
        await publisher.publish(stored(HASHES[:3], PROMPT[:48]), lost=True)
        rig.index.add_instance(CacheSpec("md1", MODEL, 16, (publisher.source,)))
        await rig.until_tokens(48)

    async def test_idle_engine_is_known_to_be_empty(self, rig: Rig) -> None:
        """An engine that never stored anything answers the replay with nothing: its hit is 0."""
        await rig.publisher()
        await rig.until_tokens(0)

    async def test_removal_cuts_the_prefix(self, rig: Rig) -> None:
        """A hole ends the prefix; absent hashes in the same batch do not matter; a block stored again closes it."""
        engine = await rig.publisher()
        await engine.publish(stored(HASHES, PROMPT[:160]))
        await rig.until_tokens(160)
        await engine.publish(removed([12345, 3, 4]))
        await rig.until_tokens(32)
        await engine.publish(stored([3, 4], PROMPT[32:64], parent=2), stored([3, 4], PROMPT[32:64], parent=2))
        await rig.until_tokens(160)
        await engine.publish(removed([10, 9]), removed([9]))
        await rig.until_tokens(128)

    async def test_clear_empties_one_instance_on_every_tier(self, rig: Rig) -> None:
        """AllBlocksCleared leaves nothing of that instance and does not touch another."""
        first, second = await rig.publisher("md1"), await rig.publisher("md2")
        for engine in (first, second):
            await engine.publish(stored(HASHES, PROMPT[:160]), stored(HASHES, PROMPT[:160], medium="CPU"))
        await rig.until_tokens(160, "md1")
        await rig.until_tokens(160, "md2")
        await first.publish(CLEARED)
        await rig.until_tokens(0, "md1")
        assert rig.hit("md2").tokens == 160
        assert rig.index.stats().instances["md1"].blocks == 0

    async def test_slower_tiers_count_too(self, rig: Rig) -> None:
        """Blocks that were moved to host memory still count, until they have left that as well."""
        engine = await rig.publisher()
        await engine.publish(stored(HASHES, PROMPT[:160]), stored(HASHES[5:], PROMPT[80:160], 5, medium="CPU"))
        await engine.publish(removed(HASHES[6:]))
        await engine.publish(removed(HASHES[8:], medium="CPU"))
        await rig.until_tokens(128)
        await engine.publish(removed(HASHES[5:], medium="CPU"))
        await rig.until_tokens(96)

    async def test_salts_and_adapters_are_apart(self, rig: Rig) -> None:
        """The same tokens under another salt or LoRA adapter are no hit; an adapter without a name counts nowhere."""
        engine = await rig.publisher()
        salted = [["tenant-a"], None]
        await engine.publish(stored([1, 2], PROMPT[:32], extra_keys=salted))
        await engine.publish(stored([3], PROMPT[:16], lora_id=1, lora_name="law", extra_keys=[["law"]]))
        await engine.publish(stored([4], PROMPT[:16], lora_id=2))
        await rig.changes.until(lambda: rig.hit(lora="law").tokens == 16)
        assert rig.hit(salt="tenant-a").tokens == 32
        assert rig.hit().tokens == rig.hit(salt="tenant-b").tokens == rig.hit(lora="other").tokens == 0
        assert rig.hit(lora="law", salt="tenant-a").tokens == 0

    async def test_blocks_with_unknown_extra_keys_never_hit(self, rig: Rig) -> None:
        """Multimodal blocks, and those after them, do not count for text of the same token ids."""
        engine = await rig.publisher()
        await engine.publish(stored([1, 2, 3], PROMPT[:48], extra_keys=[None, [["image-hash", 3]], None]))
        await rig.until_tokens(16)
        await engine.publish(stored([8], PROMPT[48:64], parent=3), stored([9], PROMPT[16:32], 1, extra_keys=[7]))
        await engine.publish(stored([20], PROMPT[:16]), removed([1]), removed([20]))
        await rig.until_tokens(0)
        assert rig.count("opaque_blocks") == 3
        assert rig.count("orphan_blocks") == 1

    @pytest.mark.parametrize(("block_size", "tokens"), [(64, 128), (32, 160), (24, 144), (8, 160), (160, 160)])
    async def test_hits_are_whole_blocks_of_the_instance(self, rig: Rig, block_size: int, tokens: int) -> None:
        """A hit is a multiple of the instance's own block size, within one own block of what is there."""
        engine = await rig.publisher(block_size=block_size)
        count = 160 // block_size
        await engine.publish(stored(range(1, count + 1), PROMPT[: count * block_size]))
        await rig.until_tokens(tokens)

    async def test_whole_prompt_is_never_a_hit(self, rig: Rig) -> None:
        """The last token is always computed, so a prompt of full blocks hits at most all blocks but the last."""
        engine = await rig.publisher()
        await engine.publish(stored(HASHES, PROMPT[:160]))
        await rig.until_tokens(160)
        assert rig.hit(prompt=PROMPT[:160]).tokens == 144
        assert rig.hit(prompt=PROMPT[:1]).tokens == rig.hit(prompt=[]).tokens == 0

    async def test_orphans_do_not_count(self, rig: Rig) -> None:
        """Blocks whose parent is not known, and their children, are no prefix of anything."""
        engine = await rig.publisher()
        await engine.publish(stored([2], PROMPT[16:32], parent=1), stored([3], PROMPT[32:48], parent=2))
        await engine.publish(stored([1], PROMPT[:16]))
        await rig.until_tokens(16)
        assert rig.count("orphan_blocks") == 2

    async def test_only_dense_groups_count(self, rig: Rig) -> None:
        """Blocks of sliding-window or state groups are left out; so are those of other machines."""
        engine = await rig.publisher()
        await engine.publish(stored([1], PROMPT[:16], group_idx=1, kv_cache_spec_kind="sliding_window"))
        await engine.publish(stored([1, 2], PROMPT[:32], group_idx=0, kv_cache_spec_kind="full_attention"))
        await engine.publish(removed([1], group_idx=1), stored([3], PROMPT[32:48], 2, locality="REMOTE"))
        await engine.publish(stored([4], PROMPT[32:48], 2, group_idx=3), removed([2], locality="REMOTE"))
        await engine.publish(stored([5], range(16), group_idx=0))
        await rig.changes.until(lambda: rig.hit(prompt=range(17)).tokens == 16)
        assert rig.hit().tokens == 32

    async def test_gap_is_replayed(self, rig: Rig) -> None:
        """A message that was lost on the way is fetched when the next one arrives."""
        engine = await rig.publisher()
        await engine.publish(stored([1], PROMPT[:16]))
        await rig.until_tokens(16)
        await engine.publish(stored([2], PROMPT[16:32], parent=1), lost=True)
        await engine.publish(stored([3], PROMPT[32:48], parent=2))
        await rig.until_tokens(48)

    async def test_gap_beyond_the_buffer_makes_the_instance_unknown(self, rig: Rig) -> None:
        """When the engine no longer has what was lost the entries are dropped and the hit is None."""
        engine = await rig.publisher(buffer_steps=1)
        await rig.until_tokens(0)
        await engine.publish(stored(HASHES[:3], PROMPT[:48]))
        await rig.until_tokens(48)
        await engine.publish(removed([3]), lost=True)
        await engine.publish(stored([50], range(16)))
        await rig.changes.until(lambda: rig.hit().tokens is None and rig.hit().at_least_tokens == 0)
        await engine.publish(CLEARED)
        await rig.until_tokens(0)

    @pytest.mark.parametrize("replay", [True, False])
    async def test_restarted_engine_starts_empty(self, rig: Rig, replay: bool) -> None:
        """A sequence that begins at 0 again comes from a new process: what the old one held is gone."""
        engine = await rig.publisher(replay=replay)
        for block in range(3):
            await engine.publish(stored([block + 1], PROMPT[block * 16 :][:16], parent=block or None))
        await rig.until_tokens(48)
        engine.restart()
        await engine.publish(stored([70], range(16)))
        await rig.changes.until(lambda: rig.hit(prompt=range(17)).tokens == 16)
        assert rig.hit().tokens == 0

    async def test_new_boot_id_drops_the_entries_at_once(self, rig: Rig) -> None:
        """An announced restart empties the instance before any event of the new process came."""
        engine = await rig.publisher()
        await engine.publish(stored(HASHES[:2], PROMPT[:32]))
        await rig.until_tokens(32)
        spec = CacheSpec("md1", MODEL, 16, (engine.source,), boot_id="one")
        rig.index.add_instance(spec)
        assert rig.hit().tokens == 32
        engine.restart()
        rig.index.add_instance(CacheSpec("md1", MODEL, 16, (engine.source,), boot_id="two"))
        assert rig.hit() == CacheHit(None, 0, predicted=False)
        await rig.until_tokens(0)
        await engine.publish(stored(HASHES[:1], PROMPT[:16]))
        await rig.until_tokens(16)

    async def test_events_of_the_old_process_do_not_come_back(self, rig: Rig) -> None:
        """Events of the earlier engine process that were still queued are not taken for the new one's."""
        engine = await rig.publisher()
        rig.index.add_instance(CacheSpec("md1", MODEL, 16, (engine.source,), boot_id="one"))
        await rig.until_tokens(0)
        for number in range(500):
            await engine.publish(stored([number], [number, *PROMPT[1:16]]))
        engine.restart()
        rig.index.add_instance(CacheSpec("md1", MODEL, 16, (engine.source,), boot_id="two"))
        await engine.wait_for_subscriber()
        await engine.publish(stored([1], PROMPT[:16]))
        await rig.until_tokens(16)
        assert rig.index.stats().instances["md1"].blocks == 1

    async def test_removed_instance_is_not_looked_up(self, rig: Rig) -> None:
        """A removed instance is in no answer, whatever its engine still publishes."""
        engine = await rig.publisher()
        await engine.publish(stored(HASHES[:2], PROMPT[:32]))
        await rig.until_tokens(32)
        rig.index.remove_instance("md1")
        rig.index.remove_instance("never-there")
        await engine.publish(stored([3], PROMPT[32:48], parent=2))
        assert rig.index.lookup(MODEL, PROMPT) == {}

    async def test_garbage_is_dropped_and_counted(self, rig: Rig) -> None:
        """Frames that are not the format change nothing but a counter, and the stream goes on."""
        engine = await rig.publisher()
        await engine.publish(stored([1], PROMPT[:16]))
        await rig.until_tokens(16)
        garbage = [
            (b"",),
            (b"", b"short", encode_batch([])),
            (b"", (1).to_bytes(8, "big"), b"\xdd\xff\xff\xff\xff"),
            (b"", (1).to_bytes(8, "big"), b"\x91" * 100_000),
            (b"", (1).to_bytes(8, "big"), encode_batch([{"type": "BlockRemoved", "block_hashes": ["x"]}])),
            (b"", (1).to_bytes(8, "big"), encode_batch([CLEARED], rank=7)),
            (b"", (1).to_bytes(8, "big"), msgspec.msgpack.encode({"ts": float("nan"), "events": []})),
        ]
        for frames in garbage:
            await engine.send_raw(*frames)
        await rig.changes.until(lambda: rig.hit().tokens is None)
        await engine.publish(stored([2], PROMPT[16:32], parent=1), {"type": "BlockDreamt", "of": 3})
        await rig.until_tokens(32)
        assert rig.count("bad_frames") == len(garbage)
        assert rig.count("skipped_events") == 1

    @pytest.mark.parametrize("sequence", [0, 1, 40, (1 << 64) - 1])
    async def test_forged_sequence_is_not_believed(self, rig: Rig, sequence: int) -> None:
        """A message that the engine's own buffer does not confirm is dropped, whatever its number."""
        engine = await rig.publisher()
        for block in range(2):
            await engine.publish(stored([block + 1], PROMPT[block * 16 :][:16], parent=block or None))
        await rig.until_tokens(32)
        await engine.send_raw(b"", sequence.to_bytes(8, "big"), encode_batch([CLEARED]))
        await engine.publish(stored([3], PROMPT[32:48], parent=2))
        await rig.until_tokens(48)
        assert rig.count("forged_frames") == 1

    async def test_forged_next_message_is_undone(self, rig: Rig) -> None:
        """A forged message with the very next number is found out by the true one of that number."""
        engine = await rig.publisher()
        await engine.publish(stored([1], PROMPT[:16]))
        await rig.until_tokens(16)
        await engine.send_raw(b"", (1).to_bytes(8, "big"), encode_batch([stored([5], range(16))]))
        await rig.changes.until(lambda: rig.hit(prompt=range(17)).tokens == 16)
        await engine.publish(stored([2], PROMPT[16:32], parent=1))
        await rig.until_tokens(32)
        assert rig.hit(prompt=range(17)).tokens == 0

    async def test_duplicate_messages_change_nothing(self, rig: Rig) -> None:
        """A message that comes twice is applied once."""
        engine = await rig.publisher()
        await engine.publish(stored([1, 2], PROMPT[:32]))
        await engine.publish(removed([2]))
        await rig.until_tokens(16)
        await engine.send_raw(b"", (0).to_bytes(8, "big"), encode_batch([stored([1, 2], PROMPT[:32])]))
        await engine.publish(stored([9], range(16)))
        await rig.changes.until(lambda: rig.hit(prompt=range(17)).tokens == 16)
        assert rig.hit().tokens == 16
        assert rig.count("duplicates") >= 1

    async def test_ranks_have_sequences_of_their_own(self, rig: Rig) -> None:
        """Two ranks on one port count apart; an instance's hit is its best rank's."""
        engine = await rig.resources.enter_async_context(run_publisher(replay=False))
        rig.index.add_instance(CacheSpec("md1", MODEL, 16, (engine.source,), dp_size=2))
        await engine.wait_for_subscriber()
        batches = {0: [stored([1], PROMPT[:16])], 1: [stored([1, 2], PROMPT[:32])]}
        for rank, events in batches.items():
            await engine.send_raw(b"", (0).to_bytes(8, "big"), encode_batch(events, rank))
        await rig.until_tokens(32)
        await engine.send_raw(b"", (1).to_bytes(8, "big"), encode_batch([CLEARED], 1))
        await rig.until_tokens(16)
        assert rig.count("restarts") == 0

    async def test_ranks_have_sources_of_their_own(self, rig: Rig) -> None:
        """Each rank's source is followed and replayed; hits are told by rank, and a rank's loss makes all unknown."""
        ranks = [await rig.resources.enter_async_context(run_publisher(rank=rank, buffer_steps=2)) for rank in range(2)]
        await ranks[1].publish(stored([1, 2, 3], PROMPT[:48]), lost=True)
        rig.index.add_instance(CacheSpec("md1", MODEL, 16, tuple(rank.source for rank in ranks), dp_size=2))
        for rank in ranks:
            await rank.wait_for_subscriber()
        await rig.until_tokens(48)
        assert rig.hit() == CacheHit(48, 48, False, ranks=(0, 48))
        await ranks[0].publish(stored(HASHES[:5], PROMPT[:80]))
        await rig.until_tokens(80)
        assert rig.hit().ranks == (80, 48)
        await ranks[0].publish(removed(HASHES[1:5]))
        await rig.until_tokens(48)
        assert rig.hit().ranks == (16, 48)
        for _ in range(3):
            await ranks[1].publish(removed([3]), lost=True)
        await ranks[1].publish(stored([50], range(16)))
        await rig.changes.until(lambda: rig.hit().tokens is None)
        await rig.until_ranks(16, 0)
        assert rig.hit().at_least_tokens == 16

    async def test_doubt_is_a_rank_s_own(self, rig: Rig) -> None:
        """A message that could not be read leaves its rank in doubt until that rank is heard, whatever others say."""
        ranks = [await rig.resources.enter_async_context(run_publisher(rank=rank)) for rank in range(2)]
        rig.index.add_instance(CacheSpec("md1", MODEL, 16, tuple(rank.source for rank in ranks), dp_size=2))
        for rank in ranks:
            await rank.wait_for_subscriber()
        await rig.until_tokens(0)
        await ranks[1].send_raw(b"", b"short", encode_batch([]))
        await rig.until_tokens(None)
        await ranks[0].publish(stored([1], PROMPT[:16]))
        await rig.changes.until(lambda: rig.hit().at_least_tokens == 16)
        assert rig.hit().tokens is None
        await ranks[1].publish(stored([2], range(16)))
        await rig.until_tokens(16)

    @pytest.mark.parametrize(("first", "bad"), [(0, 2), (4, 3), (4, 6)])
    async def test_ranks_of_others_are_refused(self, rig: Rig, first: int, bad: int) -> None:
        """Events name ranks from the instance's first one on; those of another rank are dropped and counted."""
        ranks = [await rig.resources.enter_async_context(run_publisher(rank=first + rank)) for rank in range(2)]
        sources = tuple(rank.source for rank in ranks)
        rig.index.add_instance(CacheSpec("md1", MODEL, 16, sources, dp_size=2, first_rank=first))
        for rank in ranks:
            await rank.wait_for_subscriber()
        await rig.until_tokens(0)
        await ranks[0].send_raw(b"", (0).to_bytes(8, "big"), encode_batch([stored(HASHES, PROMPT[:160])], bad))
        await rig.until_count("bad_frames", 1)
        await ranks[0].publish(stored([1], PROMPT[:16]))
        await ranks[1].publish(stored([1, 2], PROMPT[:32]))
        await rig.until_tokens(32)
        assert rig.hit().ranks == (16, 32)

    async def test_ranks_without_events_are_predicted_apart(self, rig: Rig) -> None:
        """What was routed to one rank is no hit on another; a rank that the instance has not is ignored."""
        rig.index.add_instance(CacheSpec("p1", MODEL, 16, dp_size=2))
        rig.index.note_routed("p1", MODEL, PROMPT[:33], rank=0)
        rig.index.note_routed("p1", MODEL, PROMPT, rank=1)
        rig.index.note_routed("p1", MODEL, PROMPT, rank=2)
        await rig.until_ranks(32, 160, instance_id="p1")
        assert rig.hit("p1") == CacheHit(160, 160, predicted=True, ranks=(32, 160))

    async def test_adapter_that_is_a_model_of_its_own_is_not_named_twice(self, rig: Rig) -> None:
        """An engine names the adapter in its events; under that name they are found, and the base's are not."""
        engine = await rig.resources.enter_async_context(run_publisher())
        rig.index.add_instance(CacheSpec("law1", "law", 16, (engine.source,)))
        await engine.wait_for_subscriber()
        await engine.publish(stored([1], PROMPT[:16], lora_id=1, lora_name="law", extra_keys=[["law", "salt"]]))
        await engine.publish(stored([2, 3], PROMPT[:32], extra_keys=[["other-salt"], None]))

        def hit(salt: str) -> int:
            return rig.index.lookup("law", PROMPT, salt)["law1"].at_least_tokens

        await rig.changes.until(lambda: hit("other-salt") == 32)
        assert hit("salt") == 16
        assert rig.index.lookup("law", PROMPT)["law1"].at_least_tokens == 0

    async def test_engine_without_events_is_predicted(self, rig: Rig) -> None:
        """What was routed to an instance without events counts, marked as predicted, until its time is over."""
        rig.index.add_instance(CacheSpec("p1", MODEL, 64))
        rig.index.note_routed("p1", MODEL, PROMPT)
        rig.index.note_routed("p1", MODEL, range(40), salt="tenant-a")
        rig.index.note_routed("nobody", MODEL, PROMPT)
        await rig.changes.until(lambda: rig.hit("p1").tokens == 128)
        assert rig.hit("p1") == CacheHit(128, 128, predicted=True)
        assert rig.hit("p1", prompt=range(40)).tokens == 0
        rig.clock.now_s += rig.predicted_ttl_s / 2
        rig.index.note_routed("p1", MODEL, PROMPT[:65])
        rig.clock.now_s += rig.predicted_ttl_s / 2 + 1
        await rig.changes.until(lambda: rig.hit("p1").tokens == 64)
        rig.clock.now_s += rig.predicted_ttl_s
        assert rig.hit("p1").tokens == 0

    async def test_notes_do_not_touch_instances_with_events(self, rig: Rig) -> None:
        """An instance that publishes events is judged by them alone."""
        engine = await rig.publisher()
        await rig.until_tokens(0)
        rig.index.note_routed("md1", MODEL, PROMPT)
        await engine.publish(stored([1], PROMPT[:16]))
        await rig.until_tokens(16)

    async def test_models_are_apart(self, rig: Rig) -> None:
        """A lookup names only the instances of its model."""
        rig.index.add_instance(CacheSpec("p1", MODEL, 16))
        rig.index.add_instance(CacheSpec("x1", "other", 16))
        rig.index.note_routed("x1", "other", PROMPT)
        await rig.changes.until(lambda: rig.index.lookup("other", PROMPT)["x1"].tokens == 160)
        assert set(rig.index.lookup(MODEL, PROMPT)) == {"p1"}
        assert rig.index.lookup("nothing", PROMPT) == {}
