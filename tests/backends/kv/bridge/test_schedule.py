"""Tests of the transfer scheduler: examples for each rule, and properties over any course of events."""

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from backends.kv.bridge.schedule import ONE_IN, PRIORITIES, PROBE_WIDTH_CHUNKS, TransferSchedule
from backends.kv.bridge.types import ChunkFetch, ChunkId
from backends.types import TransferPriority

SIZE = 100
ALL = 1 << 40


def ids(*names: str) -> list[ChunkId]:
    """Chunks by short names."""
    return [ChunkId("lmcache", name) for name in names]


def numbered(prefix: str, count: int) -> list[ChunkId]:
    """``count`` chunks of one prompt."""
    return ids(*(f"{prefix}{index}" for index in range(count)))


def make(small_bytes: int = 10 * SIZE, memory_bytes: int = ALL, large_share: float = 0.125) -> TransferSchedule:
    """A scheduler with small bounds."""
    return TransferSchedule(memory_bytes=memory_bytes, small_bytes=small_bytes, large_share=large_share)


def see(schedule: TransferSchedule, chunks: Iterable[ChunkId], size_bytes: int = SIZE) -> None:
    """Let the sending store hold ``chunks``."""
    for chunk in chunks:
        schedule.seen(chunk, size_bytes)


def queued_bytes(schedule: TransferSchedule) -> int:
    """What is queued in all classes."""
    return sum(schedule.queued_by_class().values())


def take(schedule: TransferSchedule, window_bytes: int = ALL) -> ChunkFetch:
    """The next fetch, which must exist."""
    fetch = schedule.next_fetch(window_bytes)
    assert fetch is not None
    return fetch


def deliver(schedule: TransferSchedule, fetch: ChunkFetch) -> list[str]:
    """Carry a fetch through."""
    schedule.received(fetch)
    return schedule.stored(fetch)


def order(schedule: TransferSchedule, count: int) -> list[str]:
    """Keys of the next ``count`` fetches, each delivered before the next is chosen."""
    keys = []
    for _ in range(count):
        fetch = take(schedule)
        keys.append(fetch.chunk.key)
        deliver(schedule, fetch)
    return keys


def test_moves_in_order_and_skips_what_is_present() -> None:
    """Missing chunks start in the transfer's order; present ones are done from the start."""
    schedule = make()
    schedule.open("t", ids("a", "b", "c", "d"), present=set(ids("b")))
    see(schedule, ids("d", "c", "a"))
    assert order(schedule, 3) == ["a", "c", "d"]
    standing = schedule.standing("t")
    assert (standing.chunks_done, standing.chunks_present, standing.wan_bytes) == (4, 1, 3 * SIZE)
    assert standing.complete


def test_a_chunk_that_is_not_there_yet_holds_back_those_after_it() -> None:
    """Nothing overtakes a chunk that the sending store lacks; others' transfers go on."""
    schedule = make()
    schedule.open("t", ids("a", "b"))
    schedule.open("u", ids("x"))
    see(schedule, ids("b", "x"))
    assert order(schedule, 1) == ["x"]
    assert schedule.next_fetch(ALL) is None
    see(schedule, ids("a"))
    assert order(schedule, 2) == ["a", "b"]


def test_a_shared_chunk_crosses_once() -> None:
    """A chunk that two transfers want is fetched once, counts as done for both, and is paid for by one."""
    schedule = make()
    schedule.open("t", ids("a", "b"))
    schedule.open("u", ids("a", "c"))
    see(schedule, ids("a", "b", "c"))
    fetch = take(schedule)
    assert fetch.chunk.key == "a"
    assert deliver(schedule, fetch) == ["t", "u"]
    assert sorted(order(schedule, 2)) == ["b", "c"]
    assert schedule.standing("t").wan_bytes + schedule.standing("u").wan_bytes == 3 * SIZE


def test_small_before_large_without_starving_it() -> None:
    """Small transfers go first, but while large ones wait they get their share of the bytes."""
    schedule = make(small_bytes=20 * SIZE, large_share=0.25)
    schedule.open("large", numbered("l", 100))
    see(schedule, numbered("l", 100))
    assert order(schedule, 1) == ["l0"]
    for number in range(4):
        chunks = numbered(f"s{number}-", 20)
        schedule.open(f"small{number}", chunks)
        see(schedule, chunks)
    keys = order(schedule, 80)
    assert keys[0][0] == "s"
    assert sum(key[0] == "l" for key in keys) in (19, 20)
    assert max(len(run) for run in "".join(key[0] for key in keys).split("l")) <= 4


def test_fair_within_a_class() -> None:
    """Transfers of one class share the link evenly, and one that comes later is not given the past."""
    schedule = make(small_bytes=0)
    for name in ("t", "u"):
        schedule.open(name, numbered(name, 50))
        see(schedule, numbered(name, 50))
    order(schedule, 40)
    schedule.open("v", numbered("v", 50))
    see(schedule, numbered("v", 50))
    keys = order(schedule, 30)
    counts = [sum(key[0] == name for key in keys) for name in "tuv"]
    assert max(counts) - min(counts) <= 1


def test_fair_by_bytes() -> None:
    """A transfer of large chunks gets as many bytes as one of small chunks, not as many chunks."""
    schedule = make(small_bytes=0)
    schedule.open("t", numbered("t", 50))
    schedule.open("u", numbered("u", 50))
    see(schedule, numbered("t", 50), SIZE)
    see(schedule, numbered("u", 50), 4 * SIZE)
    keys = order(schedule, 25)
    assert 19 <= sum(key[0] == "t" for key in keys) <= 21


def test_a_held_up_transfer_saves_no_turns() -> None:
    """Who waited for the sending store is level with the others afterwards."""
    schedule = make(small_bytes=0)
    schedule.open("t", numbered("t", 50))
    schedule.open("u", numbered("u", 50))
    see(schedule, numbered("t", 50))
    see(schedule, numbered("u", 1))
    order(schedule, 30)
    see(schedule, numbered("u", 50))
    keys = order(schedule, 10)
    assert sum(key[0] == "u" for key in keys) <= 6


def begin(schedule: TransferSchedule, name: str, count: int, priority: TransferPriority) -> None:
    """Open a transfer of ``count`` chunks that the sending store holds."""
    schedule.open(name, numbered(name, count), priority=priority)
    see(schedule, numbered(name, count))


def test_waiting_before_relay_before_later() -> None:
    """Whoever came first, a higher class goes first, but for each lower one's turn in so many."""
    schedule = make(small_bytes=0)
    for name, priority in zip("lrw", reversed(PRIORITIES), strict=True):
        begin(schedule, name, 3 * ONE_IN, priority)
    keys = "".join(key[0] for key in order(schedule, 9 * ONE_IN))
    busy = keys[: keys.rindex("w") + 1]
    assert busy[: ONE_IN - 1] == "w" * (ONE_IN - 1)
    assert busy.count("r") == busy.count("l") == 3
    relaying = keys[len(busy) : keys.rindex("r") + 1]
    assert relaying.count("l") == pytest.approx(len(relaying) / ONE_IN, abs=1)


def test_a_class_that_has_nothing_to_start_saves_no_turns() -> None:
    """Who waits for the sending store, or could go first, takes nothing from a higher class for that afterwards."""
    schedule = make(small_bytes=0)
    begin(schedule, "l", 4 * ONE_IN, "later")
    order(schedule, 2 * ONE_IN)
    schedule.open("r", numbered("r", 9), priority="relay")
    begin(schedule, "w", 4 * ONE_IN, "waiting")
    order(schedule, 2 * ONE_IN)
    see(schedule, numbered("r", 9))
    keys = "".join(key[0] for key in order(schedule, ONE_IN))
    assert keys.count("r") <= 1 and keys.count("l") <= 2


def test_a_lower_class_waits_for_a_large_chunk_of_its_own_in_bytes() -> None:
    """A lower class's turn is in bytes: one chunk as large as four costs it four turns."""
    schedule = make(small_bytes=0)
    begin(schedule, "w", 8 * ONE_IN, "waiting")
    schedule.open("l", numbered("l", 3), priority="later")
    see(schedule, numbered("l", 3), 4 * SIZE)
    keys = "".join(key[0] for key in order(schedule, 8 * ONE_IN))
    assert [len(run) for run in keys.split("l")[:-1]] == [4 * (ONE_IN - 1)] * 2


def test_small_before_large_within_a_class_only() -> None:
    """A small transfer that nobody waits for does not pass a large one that somebody waits for."""
    schedule = make(small_bytes=2 * SIZE)
    begin(schedule, "w", 8, "waiting")
    begin(schedule, "L", 8, "later")
    begin(schedule, "s", 2, "later")
    assert "".join(key[0] for key in order(schedule, 10)) == "w" * 8 + "ss"


def test_the_class_may_change_while_chunks_are_under_way() -> None:
    """A lowered transfer ends the chunk that is under way and starts no other; a raised one goes at once."""
    schedule = make(small_bytes=0)
    begin(schedule, "t", 9, "waiting")
    under_way = take(schedule)
    begin(schedule, "u", 3, "waiting")
    schedule.prioritise("t", "later")
    assert order(schedule, 2) == ["u0", "u1"]
    assert deliver(schedule, under_way) == ["t"]
    schedule.prioritise("t", "relay")
    schedule.prioritise("u", "later")
    assert order(schedule, 8)[:8] == [f"t{number}" for number in range(1, 9)]
    schedule.prioritise("nobody", "later")


def test_a_changed_transfer_is_level_with_its_new_class() -> None:
    """What a transfer was given in one class is not held against it, or for it, in another."""
    schedule = make(small_bytes=0)
    begin(schedule, "t", 90, "waiting")
    order(schedule, 30)
    schedule.prioritise("t", "later")
    begin(schedule, "u", 90, "later")
    keys = order(schedule, 20)
    assert sum(key[0] == "t" for key in keys) == 10
    begin(schedule, "v", 90, "later")
    assert 3 <= sum(key[0] == "v" for key in order(schedule, 12)) <= 5


def test_a_shared_chunk_counts_for_the_highest_class() -> None:
    """A chunk that somebody waits for is fetched and queued as such, whoever else wants it."""
    schedule = make(small_bytes=0)
    begin(schedule, "l", 4, "later")
    begin(schedule, "r", 2, "relay")
    schedule.open("w", numbered("l", 2))
    assert schedule.queued_by_class() == {"waiting": 2 * SIZE, "relay": 2 * SIZE, "later": 2 * SIZE}
    assert order(schedule, 6) == ["l0", "l1", "r0", "r1", "l2", "l3"]
    assert schedule.standing("w").complete and schedule.standing("l").complete


def test_bounds_hold() -> None:
    """Neither the window nor the memory is overrun, and a single chunk may always go."""
    schedule = make(memory_bytes=3 * SIZE)
    schedule.open("t", numbered("t", 9))
    see(schedule, numbered("t", 9))
    first = take(schedule, window_bytes=1)
    assert schedule.next_fetch(1) is None
    second = take(schedule, window_bytes=2 * SIZE)
    assert schedule.next_fetch(2 * SIZE) is None
    schedule.received(first)
    schedule.received(second)
    take(schedule, window_bytes=2 * SIZE)
    assert schedule.next_fetch(ALL) is None
    schedule.stored(first)
    take(schedule)
    assert schedule.held_bytes == 3 * SIZE


def test_a_broken_connection_gives_the_chunk_back() -> None:
    """A lost fetch starts again, before later chunks; a late report of the old attempt changes nothing."""
    schedule = make()
    schedule.open("t", ids("a", "b", "c"))
    see(schedule, ids("a", "b", "c"))
    old = take(schedule)
    take(schedule)
    schedule.lost(old)
    new = take(schedule)
    assert new.chunk == old.chunk
    schedule.received(old)
    assert schedule.stored(old) == []
    schedule.lost(old)
    assert deliver(schedule, new) == ["t"]


def test_a_vanished_chunk_is_asked_for_again() -> None:
    """A chunk that the sending store lost is probed again and waits until it is back."""
    schedule = make()
    schedule.open("t", ids("a", "b"))
    see(schedule, ids("a", "b"))
    fetch = take(schedule)
    schedule.vanished(fetch)
    assert schedule.next_fetch(ALL) is None
    assert schedule.probes() == ids("a")
    see(schedule, ids("a"))
    assert order(schedule, 2) == ["a", "b"]


def test_closing_stops_only_what_nobody_else_wants() -> None:
    """Closing names the fetches under reception that became useless; those of shared chunks go on."""
    schedule = make()
    schedule.open("t", ids("a", "b", "c"))
    schedule.open("u", ids("a"))
    see(schedule, ids("a", "b", "c"))
    shared = take(schedule)
    alone = take(schedule)
    assert schedule.close("t") == [alone]
    assert schedule.next_fetch(ALL) is None
    assert schedule.held_bytes == SIZE
    assert deliver(schedule, shared) == ["u"]
    assert schedule.standing("u").wan_bytes == SIZE
    assert schedule.close("nobody") == []


def test_what_was_lost_at_the_destination_is_wanted_again() -> None:
    """Chunks that were done or present can be demanded again; those that are not done are left alone."""
    schedule = make()
    schedule.open("t", ids("a", "b", "c"), present=set(ids("a")))
    see(schedule, ids("b", "c"))
    assert order(schedule, 1) == ["b"]
    schedule.demand("t", ids("a", "b", "c"))
    assert schedule.standing("t").chunks_done == 0
    see(schedule, ids("a", "b", "c"))
    assert order(schedule, 3) == ["a", "b", "c"]


def test_a_repeated_id_is_refused() -> None:
    """One id names one open transfer; closed, it is free again."""
    schedule = make()
    schedule.open("t", ids("a"))
    with pytest.raises(ValueError, match="exists"):
        schedule.open("t", ids("b"))
    schedule.close("t")
    schedule.open("t", ids("b"))


def test_a_first_chunk_is_seen_or_not() -> None:
    """Standing tells whether either store was seen to hold the first chunk, whichever transfer has asked for it."""
    schedule, chunks = make(), ids("a", "b")
    schedule.open("t", chunks)
    assert not schedule.standing("t").first_seen
    see(schedule, chunks[1:])
    assert not schedule.standing("t").first_seen
    see(schedule, chunks[:1])
    assert schedule.standing("t").first_seen
    schedule.open("u", chunks)
    assert schedule.standing("u").first_seen
    deliver(schedule, take(schedule))
    assert schedule.standing("t").first_seen
    schedule.open("v", ids("c", "d"), present=ids("c"))
    schedule.open("w", [])
    assert schedule.standing("v").first_seen and schedule.standing("w").first_seen


def test_chunks_are_seen_in_order() -> None:
    """Standing counts the chunks from the first on that are in either store: one that is missing ends the count."""
    schedule, chunks = make(), ids("a", "b", "c", "d")
    schedule.open("t", chunks, present=ids("b"))
    assert schedule.standing("t").chunks_seen == 0
    see(schedule, [chunks[0], chunks[3]])
    assert schedule.standing("t").chunks_seen == 2
    see(schedule, [chunks[2]])
    assert schedule.standing("t").chunks_seen == 4
    fetch = take(schedule)
    schedule.vanished(fetch)
    assert schedule.standing("t").chunks_seen == 0


def test_repeated_chunks_count_once() -> None:
    """A chunk named twice in one transfer is one chunk."""
    schedule = make()
    schedule.open("t", ids("a", "a", "b"))
    assert schedule.standing("t").chunks_total == 2


def test_probes_are_narrow_while_nothing_is_there() -> None:
    """A miss narrows what is asked to the next chunk alone; a hit widens it again."""
    schedule = make()
    chunks = numbered("t", 100)
    schedule.open("t", chunks)
    assert schedule.probes() == chunks[:PROBE_WIDTH_CHUNKS]
    for chunk in chunks[:PROBE_WIDTH_CHUNKS]:
        schedule.unseen(chunk)
    assert schedule.probes() == chunks[:1]
    see(schedule, chunks[:1])
    assert schedule.probes() == chunks[1 : 1 + PROBE_WIDTH_CHUNKS]


def test_probes_name_a_shared_chunk_once() -> None:
    """Two transfers that wait for the same chunk ask once."""
    schedule = make()
    schedule.open("t", ids("a", "b"))
    schedule.open("u", ids("a", "c"))
    assert sorted(schedule.probes()) == ids("a", "b", "c")


def test_queued_bytes() -> None:
    """The queue counts known sizes, and the unknown at a known one's size."""
    schedule = make()
    schedule.open("t", ids("a", "b", "c"))
    assert queued_bytes(schedule) == 0
    see(schedule, ids("a"))
    assert queued_bytes(schedule) == 3 * SIZE
    order(schedule, 1)
    see(schedule, ids("b"))
    assert queued_bytes(schedule) == 2 * SIZE


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    sizes=st.lists(st.integers(1, 500), min_size=6, max_size=6),
    memory_bytes=st.integers(1, 3000),
    window_bytes=st.integers(1, 2000),
)
def test_everything_is_moved_in_the_end(
    lengths: Sequence[int], sizes: Sequence[int], memory_bytes: int, window_bytes: int
) -> None:
    """With all chunks there, any set of transfers completes within as many fetches as there are chunks."""
    schedule = make(memory_bytes=memory_bytes)
    for number, length in enumerate(lengths):
        schedule.open(str(number), numbered(f"{number}-", length))
        see(schedule, numbered(f"{number}-", length), sizes[number])
    fetches = 0
    while (fetch := schedule.next_fetch(window_bytes)) is not None:
        fetches += 1
        deliver(schedule, fetch)
    assert fetches == sum(lengths)
    assert all(schedule.standing(str(number)).complete for number in range(len(lengths)))
    assert (schedule.held_bytes, schedule.receiving_bytes, queued_bytes(schedule)) == (0, 0, 0)


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.tuples(st.sampled_from(PRIORITIES), st.integers(1, 60)), min_size=1, max_size=8),
    sizes=st.lists(st.integers(1, 500), min_size=8, max_size=8),
    small_bytes=st.sampled_from([0, 2000, ALL]),
)
def test_higher_classes_first_and_a_bounded_wait_for_lower_ones(
    lengths: Sequence[tuple[TransferPriority, int]], sizes: Sequence[int], small_bytes: int
) -> None:
    """While a class has chunks, those below get a share at most each, and none waits longer than its turn allows."""
    schedule = make(small_bytes=small_bytes)
    left = dict.fromkeys(PRIORITIES, 0)
    classes: dict[str, TransferPriority] = {}
    for number, ((priority, length), size) in enumerate(zip(lengths, sizes, strict=False)):
        schedule.open(f"{number}", numbered(f"{number}-", length), priority=priority)
        see(schedule, numbered(f"{number}-", length), size)
        left[priority] += length
        classes[f"{number}"] = priority
    largest = max(sizes)
    passed = dict.fromkeys(PRIORITIES, 0)
    above = dict.fromkeys(PRIORITIES, 0)
    own = dict.fromkeys(PRIORITIES, 0)
    while (fetch := schedule.next_fetch(ALL)) is not None:
        rank = PRIORITIES.index(classes[fetch.transfer_id])
        best = min(index for index, priority in enumerate(PRIORITIES) if left[priority])
        for index, priority in enumerate(PRIORITIES):
            if index > rank and left[priority]:
                passed[priority] += fetch.size_bytes
                above[priority] += fetch.size_bytes
                # its own turn, the chunk that filled it, and one chunk of each other class that is due as well
                assert passed[priority] <= (ONE_IN - 1) * largest + 3 * largest, "nobody starves"
        given = PRIORITIES[rank]
        passed[given] = 0
        if rank > best:
            own[given] += fetch.size_bytes
            assert own[given] * (ONE_IN - 1) <= above[given], "no more than its share while others are busy"
        left[given] -= 1
        deliver(schedule, fetch)
    assert not any(left.values())


class AnyCourse(RuleBasedStateMachine):
    """Events in any order over a few transfers that share chunks; a model beside it says what must hold."""

    running = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        self.schedule = make(small_bytes=3 * SIZE, memory_bytes=5 * SIZE)
        self.wanted: dict[str, list[ChunkId]] = {}
        self.done: dict[str, set[ChunkId]] = {}
        self.started: dict[str, list[ChunkId]] = {}
        self.active: dict[ChunkFetch, str] = {}
        self.priority: dict[str, TransferPriority] = {}

    @rule(
        name=st.sampled_from("tuvw"),
        chunks=st.lists(st.sampled_from(numbered("c", 9)), unique=True),
        present=st.sets(st.sampled_from(numbered("c", 9))),
        priority=st.sampled_from(PRIORITIES),
    )
    def open(self, name: str, chunks: list[ChunkId], present: set[ChunkId], priority: TransferPriority) -> None:
        if name in self.wanted:
            return
        self.schedule.open(name, chunks, present, priority)
        self.priority[name] = priority
        self.wanted[name] = chunks
        self.done[name] = present & set(chunks)

    @rule(name=st.sampled_from("tuvw"), priority=st.sampled_from(PRIORITIES))
    def prioritise(self, name: str, priority: TransferPriority) -> None:
        self.schedule.prioritise(name, priority)
        self.priority[name] = priority

    @rule(name=st.sampled_from("tuvw"))
    def close(self, name: str) -> None:
        orphans = self.schedule.close(name)
        self.wanted.pop(name, None)
        self.done.pop(name, None)
        still_wanted = {chunk for other in self.wanted for chunk in self.wanted[other] if chunk not in self.done[other]}
        for fetch in orphans:
            assert fetch.chunk not in still_wanted
            assert self.active.pop(fetch) == "receiving"
        for fetch in [fetch for fetch in self.active if fetch.chunk not in still_wanted]:
            assert self.active.pop(fetch) == "writing"

    @rule(chunk=st.sampled_from(numbered("c", 9)), there=st.booleans())
    def probe(self, chunk: ChunkId, there: bool) -> None:
        if there:
            self.schedule.seen(chunk, SIZE)
        else:
            self.schedule.unseen(chunk)

    @rule(target=running, window_bytes=st.integers(1, 6 * SIZE))
    def start(self, window_bytes: int) -> ChunkFetch | None:
        fetch = self.schedule.next_fetch(window_bytes)
        if fetch is None:
            return None
        assert fetch.chunk not in {other.chunk for other in self.active}, "a chunk crosses once"
        wanting = [name for name, chunks in self.wanted.items() if fetch.chunk in chunks]
        assert wanting, "only what is wanted is fetched"
        under_way = {other.chunk for other in self.active} | {fetch.chunk}
        chunks = self.wanted[fetch.transfer_id]
        before = chunks[: chunks.index(fetch.chunk)]
        assert all(chunk in self.done[fetch.transfer_id] or chunk in under_way for chunk in before), "in order"
        self.active[fetch] = "receiving"
        receiving = sum(state == "receiving" for state in self.active.values())
        assert receiving == 1 or receiving * SIZE <= window_bytes
        return fetch

    @rule(fetch=running)
    def receive(self, fetch: ChunkFetch | None) -> None:
        if fetch is None:
            return
        self.schedule.received(fetch)
        if self.active.get(fetch) == "receiving":
            self.active[fetch] = "writing"

    @rule(fetch=consumes(running))
    def store(self, fetch: ChunkFetch | None) -> None:
        if fetch is None:
            return
        moved = self.schedule.stored(fetch)
        if self.active.get(fetch) != "writing":
            assert moved == [], "a stale report changes nothing"
            return
        del self.active[fetch]
        expected = [name for name, chunks in self.wanted.items() if fetch.chunk in set(chunks) - self.done[name]]
        assert sorted(moved) == sorted(expected)
        for name in moved:
            self.done[name].add(fetch.chunk)

    @rule(fetch=consumes(running), vanished=st.booleans())
    def lose(self, fetch: ChunkFetch | None, vanished: bool) -> None:
        if fetch is None:
            return
        if vanished:
            self.schedule.vanished(fetch)
        else:
            self.schedule.lost(fetch)
        self.active.pop(fetch, None)

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.wanted)))
        lost = data.draw(st.sets(st.sampled_from(numbered("c", 9))))
        self.schedule.demand(name, lost)
        self.done[name] -= lost

    @invariant()
    def standings_agree(self) -> None:
        for name, chunks in self.wanted.items():
            standing = self.schedule.standing(name)
            assert (standing.chunks_total, standing.chunks_done) == (len(chunks), len(self.done[name]))
            assert standing.complete == (set(chunks) == self.done[name])

    @invariant()
    def bounds_agree(self) -> None:
        assert self.schedule.held_bytes == SIZE * len(self.active) <= 5 * SIZE
        assert self.schedule.receiving_bytes == SIZE * sum(state == "receiving" for state in self.active.values())

    @invariant()
    def queues_agree(self) -> None:
        queued = self.schedule.queued_by_class()
        missing = {name: set(chunks) - self.done[name] for name, chunks in self.wanted.items()}
        for priority in PRIORITIES:
            above = PRIORITIES[: PRIORITIES.index(priority)]
            of_class = [chunks for name, chunks in missing.items() if self.priority[name] == priority]
            higher = [chunks for name, chunks in missing.items() if self.priority[name] in above]
            assert queued[priority] in (0, SIZE * len(set().union(*of_class) - set().union(*higher)))

    @invariant()
    def probes_are_wanted_once(self) -> None:
        probes = self.schedule.probes()
        assert len(probes) == len(set(probes))
        assert all(self.schedule.wanters(chunk) for chunk in probes)

    def teardown(self) -> None:
        for fetch in self.active:
            self.schedule.lost(fetch)
        see(self.schedule, numbered("c", 9))
        while (following := self.schedule.next_fetch(ALL)) is not None:
            deliver(self.schedule, following)
        assert all(self.schedule.standing(name).complete for name in self.wanted), "whatever happened, it can complete"
        assert (self.schedule.held_bytes, self.schedule.receiving_bytes) == (0, 0)


TestAnyCourse = AnyCourse.TestCase
TestAnyCourse.settings = settings(deadline=None, max_examples=60, stateful_step_count=40)
