"""The table of GPU models: products as the driver names them, and their peaks."""

from __future__ import annotations

import pytest

from gangline_schemas.gpus import Precision, peak_flops

TERA = 1e12


@pytest.mark.parametrize(
    ("product", "precision", "tflops"),
    [
        ("NVIDIA A100-SXM4-40GB", "bf16", 312),
        ("NVIDIA A100 80GB PCIe", "tf32", 156),
        ("NVIDIA A100 80GB PCIe", "fp32", 19.5),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 80GB HBM3", "fp8", 1978.9),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA H100 NVL", "bf16", 835.5),
        ("NVIDIA H200", "bf16", 989.4),
        ("NVIDIA GH200 480GB", "bf16", 989.4),
        ("NVIDIA B200", "bf16", 2250),
        ("NVIDIA L4", "fp16", 121),
        ("NVIDIA L40S", "bf16", 362.05),
        ("NVIDIA L40", "bf16", 181.05),
        ("Tesla T4", "fp16", 65),
        ("Tesla V100-SXM2-32GB", "fp16", 125),
        ("Tesla V100-PCIE-16GB", "fp16", 112),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2),
        ("NVIDIA RTX 6000 Ada Generation", "bf16", 364.2),
    ],
)
def test_peaks_are_the_dense_ones_of_the_data_sheet(
    product: str, precision: Precision, tflops: float
) -> None:
    assert peak_flops(product, precision) == pytest.approx(tflops * TERA)


@pytest.mark.parametrize(
    ("product", "precision"),
    [
        ("Tesla T4", "bf16"),
        ("Tesla V100-SXM2-16GB", "tf32"),
        ("NVIDIA A100-SXM4-40GB", "fp8"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16"),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "bf16"),
        ("NVIDIA GeForce RTX 4090 D", "bf16"),
        ("NVIDIA A100X", "bf16"),
        ("Some Card 9000", "fp32"),
    ],
)
def test_what_no_sheet_states_has_no_peak(product: str, precision: Precision) -> None:
    assert peak_flops(product, precision) is None
