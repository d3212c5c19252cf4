"""Which instances a conversation was served by."""

import tracemalloc

from gateway.fleet.learning import Sessions


def test_last_turn_is_remembered() -> None:
    """A session's newest turn counts; a session that was never seen has no instances."""
    sessions = Sessions()
    sessions.note("a", frozenset({"p1", "md1"}))
    sessions.note("a", frozenset({"p2", "md1"}))
    assert sessions.served("a") == {"p2", "md1"}
    assert sessions.served("b") == frozenset()


def test_oldest_sessions_are_forgotten() -> None:
    """Beyond the bound the session that was quiet for longest goes."""
    sessions = Sessions(most=2)
    for name in ("a", "b", "a", "c"):
        sessions.note(name, frozenset({name}))
    assert sessions.served("b") == frozenset()
    assert sessions.served("a") == {"a"} and sessions.served("c") == {"c"}


def test_long_names_are_not_kept() -> None:
    """However long clients' names are, and however alike, sessions are told apart and cost no more memory."""
    sessions = Sessions()
    tracemalloc.start()
    try:
        for number in range(50):
            sessions.note("x" * 100_000 + str(number), frozenset({str(number)}))
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 200_000
    assert sessions.served("x" * 100_000 + "7") == {"7"}
