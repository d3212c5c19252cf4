"""tests/cases.md speaks of tests that exist."""

import re
from pathlib import Path

FOLDER = Path(__file__).parent


def test_every_named_test_exists() -> None:
    """A row of the field cases names only tests and files that are there."""
    rows = [
        line for line in (FOLDER / "cases.md").read_text(encoding="utf-8").splitlines() if re.match(r"\| [A-Z]+-", line)
    ]
    source = "\n".join(path.read_text(encoding="utf-8") for path in FOLDER.rglob("*.py"))
    existing = set(re.findall(r"def (test_\w+)", source))
    named = {name for row in rows for name in re.findall(r"`(test_\w+)`", row)}
    assert len(rows) > 20 and named <= existing, named - existing
    for row in rows:
        for path in re.findall(r"`tests/([\w/]+\.py)`", row):
            assert (FOLDER / path).is_file()
