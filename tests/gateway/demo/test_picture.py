"""The picture of the relay in README is drawn from a recorded answer."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from gateway.demo.picture import DARK, LIGHT, PICTURE, Recording, draw, read_recording, write_recording

SVG = "{http://www.w3.org/2000/svg}"
COURSE = Recording(
    tokens={"P": [1.5], "RLD": [1.75, 2.0, 2.25], "MD": [2.5, 3.5]},
    events=[
        {"t_s": 0.0, "event": "leg_started", "leg": 0, "kind": "prefill"},
        {"t_s": 0.0, "event": "transfer_started"},
        {"t_s": 1.0, "event": "first_token"},
        {"t_s": 1.0, "event": "leg_ended", "leg": 0},
        {"t_s": 1.0, "event": "leg_started", "leg": 1, "kind": "relay"},
        {"t_s": 1.25, "event": "transfer_complete", "wan_bytes": 3_000_000},
        {"t_s": 1.25, "event": "leg_started", "leg": 2, "kind": "extend"},
        {"t_s": 1.75, "event": "leg_ended", "leg": 2},
        {"t_s": 1.75, "event": "leg_ended", "leg": 1},
        {"t_s": 1.75, "event": "leg_started", "leg": 3, "kind": "final"},
        {"t_s": 3.0, "event": "leg_ended", "leg": 3},
    ],
)


def test_the_committed_picture_is_the_recording() -> None:
    """`python -m gateway.demo.picture` draws the committed file again."""
    assert PICTURE.read_text(encoding="utf-8") == draw(read_recording())


def test_one_time_axis() -> None:
    """The gateway's times are moved onto the client's by the first token, which both have."""
    assert COURSE.legs("relay") == [(1.5, 2.25)]
    assert COURSE.time_of("transfer_complete") == 1.75


def test_the_moments_are_told() -> None:
    """The picture names the first token, the KV's arrival, the joint, and what each role made."""
    texts = [text.text for text in ElementTree.fromstring(draw(COURSE)).iter(f"{SVG}text")]
    assert {"1.5 s: the first token, P's", "1.8 s: the KV is in region B", "3 tokens", "2 tokens", "3 MB"} <= {*texts}
    assert "joint: MD goes on, 250 ms after RLD's last token" in texts


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Writing and reading a recording loses nothing."""
    write_recording(COURSE, tmp_path / "relay.json")
    assert read_recording(tmp_path / "relay.json") == COURSE


@pytest.mark.parametrize("colours", [LIGHT, DARK])
def test_text_can_be_read(colours: dict[str, str]) -> None:
    """Text stands out from the picture's own page by WCAG's 4.5 to 1, and the colours of the roles by 3 to 1."""
    assert all(contrast(colours[name], colours["page"]) >= 4.5 for name in ("text", "muted"))
    assert all(contrast(colours[name], colours["page"]) >= 3 for name in ("P", "RLD", "KV", "MD"))


def contrast(one: str, other: str) -> float:
    """WCAG's contrast ratio of two colours."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    """WCAG's relative luminance of ``#rrggbb``."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
