"""tests/cases.md speaks of tests that exist."""

import re
from pathlib import Path

FOLDER = Path(__file__).parent
AREAS = ("SPL", "STR", "API", "IDX", "RED", "POL", "TEN", "SEC", "OPS")


def read_rows() -> list[str]:
    """Return the table's rows."""
    lines = (FOLDER / "cases.md").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if re.match(r"\| [A-Z]+-", line)]


def test_every_named_test_exists() -> None:
    """A row of the field cases names only tests and files that are there."""
    rows = read_rows()
    source = "\n".join(path.read_text(encoding="utf-8") for path in FOLDER.rglob("*.py"))
    existing = set(re.findall(r"def (test_\w+)", source))
    named = {name for row in rows for name in re.findall(r"`(test_\w+)`", row)}
    assert len(rows) > 20 and named <= existing, named - existing
    for row in rows:
        for path in re.findall(r"`tests/([\w/]+\.py)`", row):
            assert (FOLDER / path).is_file()


def test_every_case_has_one_row() -> None:
    """Rows are sorted by area and number, no case has two, and each names a test or says why there is none."""
    places = []
    for row in read_rows():
        found = re.fullmatch(r"\| ([A-Z]{3})-(\d{2,3}) \| [^|]+ \| ([^|]+) \|", row)
        assert found is not None, row
        assert found[1] in AREAS and ("`test" in found[3] or len(found[3]) > 20), row
        places.append((AREAS.index(found[1]), int(found[2])))
    assert places == sorted(set(places)) and len(places) >= 121
