"""Real answers beside simulated ones: engines' figures as they were profiled, nothing fitted to the answers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from policies.simulator.engine_model import EngineModel, measured_engine
from policies.simulator.report import Report
from policies.valley import PrefillCurve

MIDDLE, TAIL = 0.15, 0.25
"""Deviations of a median and of a 90th percentile that are within the model's reach on a machine that is quiet."""
FIGURES: Mapping[str, Callable[[Report], float]] = {
    "ttft_p50_s": lambda report: report.ttft.p50_s,
    "ttft_p90_s": lambda report: report.ttft.p90_s,
    "gap_p50_s": lambda report: report.gap.p50_s,
    "gap_p90_s": lambda report: report.gap.p90_s,
    "total_p50_s": lambda report: report.total.p50_s,
    "total_p90_s": lambda report: report.total.p90_s,
    "goodput_per_s": lambda report: report.good_per_s,
    "p_token_share": lambda report: report.token_share["P"],
    "rld_token_share": lambda report: report.token_share["RLD"],
    "md_token_share": lambda report: report.token_share["MD"],
    "wan_bytes": lambda report: float(report.wan_bytes),
}


@dataclass(frozen=True, slots=True)
class Profile:
    """What was measured of one idle engine, and what is known of it."""

    prefill: PrefillCurve
    decode: Mapping[int, float]
    """Seconds between two tokens of a lone answer, by the tokens of its context."""
    budget_tokens: int
    """Most tokens that one of its steps computes."""
    kv_tokens: int
    store_tokens: int
    load_bytes_per_s: float
    max_running: int

    def engine(self) -> EngineModel:
        """The engine as the simulator has it."""
        (near, near_s), (far, far_s) = min(self.decode.items()), max(self.decode.items())
        read_s = max(0.0, (far_s - near_s) / max(1, far - near))
        return measured_engine(
            self.prefill,
            near_s - near * read_s,
            self.budget_tokens,
            kv_read_s=read_s,
            max_running=self.max_running,
            kv_tokens=self.kv_tokens,
            load_bytes_per_s=self.load_bytes_per_s,
            store_tokens=self.store_tokens,
        )


def name_blocks(prompts: Sequence[Sequence[int]], block_tokens: int) -> list[tuple[int, ...]]:
    """Number the prompts' blocks; two of one number have the same tokens before and in them."""
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    named = []
    for prompt in prompts:
        blocks, parent = [], -1
        for start in range(0, len(prompt), block_tokens):
            parent = known.setdefault((parent, tuple(prompt[start : start + block_tokens])), len(known))
            blocks.append(parent)
        named.append(tuple(blocks))
    return named


def compare_reports(measured: Report, simulated: Report) -> dict[str, dict[str, float]]:
    """Put the figures side by side."""
    pairs = {name: (read(measured), read(simulated)) for name, read in FIGURES.items()}
    return {
        name: {"measured": real, "simulated": model, "deviation": (model - real) / real if real else model - real}
        for name, (real, model) in pairs.items()
    }


def print_calibration(table: Mapping[str, Mapping[str, float]], console: Console) -> None:
    """Print it, and which quantiles are farther off than the model should be."""
    shown = Table("figure", "measured", "simulated", "deviation", title="Measured and simulated")
    for name, row in table.items():
        most = MIDDLE if "_p50" in name else TAIL if "_p90" in name else None
        mark = " !" if most is not None and abs(row["deviation"]) > most else ""
        shown.add_row(name, f"{row['measured']:.4g}", f"{row['simulated']:.4g}", f"{row['deviation']:+.0%}{mark}")
    console.print(shown)
    console.print(f"!: more than {MIDDLE:.0%} (p50) or {TAIL:.0%} (p90) off, which on a busy machine says little")
