"""Accelerators by the four figures that decide prefill and decode, and a price.

Peak compute is dense (no sparsity) at 8 bits. Prices are what an hour costs in US dollars where such chips are rented
by the thousand; they are rough, differ by a factor of two between sellers, and are there to be replaced
(``--chips NAME=PRICE``).
"""

from dataclasses import dataclass

MFU = 0.45
"""Share of peak compute that prefill reaches; reports of MoE prefill lie between 0.3 (DeepSeek-V3 on H800, with
communication) and 0.55."""
MBU = 0.65
"""Share of peak memory bandwidth that decode reaches; FlashMLA and FlashDecoding report 0.6 to 0.85 for the kernel."""


@dataclass(frozen=True, slots=True)
class Chip:
    """One kind of chip."""

    name: str
    tflops: float
    memory_gb: float
    memory_tb_per_s: float
    link_gb_per_s: float
    """Network of the region's fabric for one chip: what KV of other instances is loaded with."""
    price_per_hour: float
    source: str


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("A100", 624, 80, 2.0, 25, 1.3, "NVIDIA A100 data sheet (INT8; 80 GB SXM), 200 Gbit/s a chip"),
        Chip("H100", 1979, 80, 3.35, 50, 2.2, "NVIDIA H100 data sheet (FP8 dense; SXM), 400 Gbit/s a chip"),
        Chip("H800", 1979, 80, 3.35, 50, 2.2, "as H100, with NVLink at 400 GB/s; DeepSeek-V3 report, section 3.1"),
        Chip("H200", 1979, 141, 4.8, 50, 2.7, "NVIDIA H200 data sheet"),
        Chip("H20", 296, 96, 4.0, 50, 1.2, "NVIDIA H20 product brief (FP8 dense)"),
        Chip("H20-3e", 296, 141, 4.8, 50, 1.4, "NVIDIA H20-3e product brief"),
        Chip("B200", 4500, 192, 8.0, 50, 4.2, "NVIDIA DGX B200 data sheet, an eighth of it"),
        Chip("MI300X", 2615, 192, 5.3, 50, 2.0, "AMD MI300X data sheet (FP8 dense)"),
        Chip("910B", 752, 64, 1.6, 25, 0.9, "Ascend 910B (INT8); sources give its memory 0.4 to 1.6 TB/s"),
        Chip("950PR", 1000, 112, 1.4, 50, 1.0, "Ascend 950PR (FP8); announced in 2025 with 128 GB and 1.6 TB/s"),
        Chip("950DT", 1000, 144, 4.0, 50, 1.25, "Ascend 950DT (FP8), Huawei Connect 2025"),
    )
}
