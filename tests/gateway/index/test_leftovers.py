"""Large containers are freed in steps, beside who let go of them."""

from threading import Event

from gateway.index.leftovers import STEP_ENTRIES, let_go


class Last:
    """Says when it is freed."""

    def __init__(self, freed: Event) -> None:
        self._freed = freed

    def __del__(self) -> None:
        self._freed.set()


def test_entries_are_freed() -> None:
    """Entries of dicts and sets are gone soon, though somebody still holds the container."""
    for make in (dict.fromkeys, set):
        freed = Event()
        held = make([*range(3 * STEP_ENTRIES), Last(freed)])
        let_go(held)
        assert freed.wait(10)


def test_small_containers_are_left_alone() -> None:
    """A thread for a few entries would cost more than they do."""
    small = dict.fromkeys(range(10))
    let_go(small)
    assert len(small) == 10
