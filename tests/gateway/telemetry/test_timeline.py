"""What is kept of recent requests."""

from gateway.telemetry.timeline import Timelines


class Clock:
    """Seconds that the test sets."""

    now_s = 10.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.now_s


def test_events_carry_the_time_since_admission() -> None:
    """An event's time counts from when the request was opened."""
    clock = Clock()
    timeline = Timelines(clock).open("r", "m")
    clock.now_s = 10.25
    timeline.note("first_token", role="P")
    assert timeline.as_dict() == {
        "request_id": "r",
        "model": "m",
        "events": [{"t_s": 0.25, "event": "first_token", "role": "P"}],
    }


def test_choices_are_found_by_their_request() -> None:
    """A request of several choices has a timeline for each, found together or alone."""
    timelines = Timelines(Clock())
    choices = [timelines.open(f"r-{number}", "m") for number in range(3)]
    assert timelines.find("r") == choices
    assert timelines.find("r-1") == [choices[1]]
    assert timelines.find("other") == []


def test_memory_is_bounded() -> None:
    """The oldest timelines go, and a timeline counts the events that it has no room for."""
    timelines = Timelines(Clock(), most=2)
    for number in range(3):
        timelines.open(f"{number}", "m")
    assert timelines.find("0") == [] and timelines.newest() is timelines.find("2")[0]
    timeline = timelines.find("2")[0]
    timeline.most_events = 1
    for _ in range(3):
        timeline.note("x")
    assert len(timeline.events) == 1 and timeline.summary["events_dropped"] == 2
