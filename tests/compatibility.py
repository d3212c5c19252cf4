"""Which KV has crossed a link, which is refused, and of which nobody knows: the table of backends/README.md.

``test_compatibility.py`` looks for the tests and for the words of the refusals; families that work are those tested.
"""

from dataclasses import dataclass
from typing import Literal

FAMILIES = "tests/e2e/test_families.py::test_a_family_is_relayed_exactly"
PATHS = "tests/e2e/test_paths.py::test_relay_over_the_path"
RELAY = "tests/e2e/test_relay.py::test_scenarios_give_one_engines_ids_and_the_promised_figures"
SERVER = "LMCache server"


@dataclass(frozen=True, slots=True)
class Row:
    """One combination. ``by``: the test in which it works, the words of its refusal, or why it is not known."""

    family: str
    ranks: str
    """Tensor-parallel ranks of P and MD."""
    dtype: str
    connector: str
    path: str
    verdict: Literal["works", "refused", "unknown"]
    by: str


ROWS = (
    Row("dense, GQA", "1 -> 1", "float32", SERVER, "bridge", "works", RELAY),
    Row("dense, GQA", "1 -> 1", "float32", SERVER, "prefetch", "works", f"{PATHS}[prefetch]"),
    Row("dense, GQA", "1 -> 1", "float32", SERVER, "engine_pull", "works", f"{PATHS}[engine_pull]"),
    Row(
        "dense, GQA",
        "1 -> 1",
        "float32",
        "NIXL",
        "nixl",
        "works",
        "tests/e2e/test_nixl.py::test_md_reads_the_prompt_from_p_beside_rld",
    ),
    Row(
        "dense, GQA",
        "1 -> 1",
        "float32",
        "LMCache without vLLM (`pdd engine`)",
        "bridge",
        "works",
        "tests/integration/test_failures.py::test_answer_is_exact_without_faults",
    ),
    Row("dense, GQA", "2 -> 1", "float32", SERVER, "bridge", "works", f"{FAMILIES}[tp_reshard]"),
    Row(
        "dense, GQA",
        "1 -> 2, 2 -> 1",
        "float32",
        "LMCache without vLLM (engines that store as ranks do)",
        "bridge",
        "works",
        "tests/integration/test_reshard.py::test_main_reads_what_other_ranks_made",
    ),
    Row(
        "dense, GQA",
        "2 -> 2 and more",
        "any",
        SERVER,
        "bridge",
        "unknown",
        "keys and chunks are LMCache's own; not run",
    ),
    Row(
        "dense, GQA",
        "n -> m",
        "any",
        "any",
        "prefetch, engine_pull, nixl",
        "refused",
        "does not regroup KV heads, only path bridge does",
    ),
    Row("MLA (DeepSeek V3)", "1 -> 1", "float32", SERVER, "bridge", "works", f"{FAMILIES}[mla]"),
    Row("MLA (DeepSeek V3)", "any", "bfloat16", SERVER, "bridge", "unknown", "one latent whatever the ranks; not run"),
    Row("windows (Gemma 3), kept whole", "1 -> 1", "float32", SERVER, "bridge", "works", f"{FAMILIES}[hybrid]"),
    Row(
        "windows (Gemma 3), `--separate-object-groups`",
        "1 -> 1",
        "float32",
        SERVER,
        "bridge",
        "works",
        f"{FAMILIES}[hybrid_groups]",
    ),
    Row(
        "windows, states, `--separate-object-groups`",
        "any",
        "any",
        "any",
        "prefetch, engine_pull, nixl",
        "refused",
        "only path bridge with dialect lmcache-mp has object groups",
    ),
    Row("linear attention, Mamba", "any", "any", SERVER, "bridge", "unknown", "not run"),
    Row("states beside heads", "n -> m", "any", SERVER, "bridge", "refused", "cannot be regrouped"),
    Row("LoRA adapter", "1 -> 1", "float32", SERVER, "bridge", "works", f"{FAMILIES}[lora]"),
    Row("two data-parallel ranks", "1 -> 1", "float32", SERVER, "bridge", "works", f"{FAMILIES}[dp2]"),
    Row("any", "any", "bfloat16 -> fp8", SERVER, "bridge", "refused", "and the model's figures make"),
    Row(
        "any",
        "any",
        "any",
        "LMCache inside vLLM, without PYTHONHASHSEED",
        "bridge",
        "refused",
        "chains its hashes from a seed that is not known",
    ),
    Row(
        "any, on GPUs", "1 -> 1", "float32, bfloat16", SERVER, "bridge", "unknown", "`make e2e-gpu` has not run on one"
    ),
    Row(
        "any", "any", "any", "SGLang's store", "none", "unknown", "SGLang answers alone, or is disaggregated by itself"
    ),
)


def relayed_families() -> list[str]:
    """Names of the families that the end-to-end tests relay."""
    return [row.by.removeprefix(FAMILIES).strip("[]") for row in ROWS if row.by.startswith(FAMILIES)]
