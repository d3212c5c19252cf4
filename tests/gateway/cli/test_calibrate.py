"""``pdd simulate --calibrate`` over real engines, the shaped link and a real gateway."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.planning.calibration import FIGURES


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_real_answers_stand_beside_simulated_ones(tmp_path: Path) -> None:
    """A few conversations are answered and simulated; each figure has both, and all tokens were somebody's."""
    out = tmp_path / "calibration.json"
    command = [sys.executable, "-m", "gateway", "simulate", "--calibrate", "--requests", "4", "--rate", "2"]
    done = subprocess.run([*command, "--json", out], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_bytes())
    table = found["calibration"]
    assert set(table) == set(FIGURES)
    assert found["requests"] == found["measured"]["requests"] == found["simulated"]["requests"] == 4
    for side in ("measured", "simulated"):
        assert table["ttft_p50_s"][side] > 0.0
        assert sum(table[f"{role}_token_share"][side] for role in ("p", "rld", "md")) == pytest.approx(1.0)
        assert table["wan_bytes"][side] > 0.0
    assert "Measured and simulated" in done.stdout
