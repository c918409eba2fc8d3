"""The table of GPU models: products as the driver names them, written names, and peaks."""

from __future__ import annotations

import pytest

from gangline_schemas.gpus import (
    Precision,
    covered,
    covered_by,
    exact_name,
    in_short,
    is_display_card,
    offered_name,
    peak_flops,
)

TERA = 1e12
UNSOURCED = -1.0
"""The table has a peak, but none was found to compare it with."""


@pytest.mark.parametrize(
    ("product", "fp16", "tf32", "fp32", "fp8"),
    [
        ("NVIDIA GB300", 2500, 1250, 80, 5000),
        ("NVIDIA B300 SXM6 AC", 2250, 1125, 75, 4500),
        ("NVIDIA GB200", 2500, 1250, 80, 5000),
        ("NVIDIA B200", 2250, 1125, 75, 4500),
        ("NVIDIA GH200 480GB", 990, 494, 67, 1979),
        ("NVIDIA H200", 989, 494, 67, 1979),
        ("NVIDIA H200 NVL", 835.5, 417.5, 60, 1670.5),
        ("NVIDIA H100 80GB HBM3", 989.4, 494.7, 66.9, 1978.9),
        ("NVIDIA H100 PCIe", 756, 378, 51.2, 1513),
        ("NVIDIA H100 NVL", 835.5, 417.5, 60, 1670.5),
        ("NVIDIA H800", 989.5, 494.5, 67, 1979),
        ("NVIDIA H800 PCIe", 756, UNSOURCED, UNSOURCED, 1513),
        ("NVIDIA H20", 148, 74, None, 296),
        ("NVIDIA A100-SXM4-40GB", 312, 156, 19.5, None),
        ("NVIDIA A100 80GB PCIe", 312, 156, 19.5, None),
        ("NVIDIA A800-SXM4-80GB", 312, 156, 19.5, None),
        ("NVIDIA A40", 149.7, 74.8, 37.4, None),
        ("NVIDIA A30", 165, 82, 10.3, None),
        ("NVIDIA A10G", 70, 35, 35, None),
        ("NVIDIA A10", 125, 62.5, 31.2, None),
        ("NVIDIA A2", 18.13, 9.06, 4.53, None),
        ("NVIDIA L40S", 362.05, 183, 91.6, 733),
        ("NVIDIA L40", 181.05, 90.5, 90.5, 362),
        ("NVIDIA L20", 119.5, 59.8, 59.8, 239),
        ("NVIDIA L4", 121, 60, 30.3, 242.5),
        ("Tesla T4", 65, None, 8.1, None),
        ("Tesla V100-SXM2-32GB", 125, None, 15.7, None),
        ("Tesla V100-PCIE-16GB", 112, None, 14, None),
        ("Tesla V100S-PCIE-32GB", 130, None, 16.4, None),
        ("Tesla P100-SXM2-16GB", 21.2, None, 10.6, None),
        ("Tesla P100-PCIE-16GB", 18.7, None, 9.3, None),
        ("Tesla P40", None, None, 12, None),
        ("Tesla P4", None, None, 5.5, None),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 503.8, 251.9, 126, 1007.6),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 438.9, 219.5, 110, 877.9),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", None, None, 120, None),
        ("NVIDIA RTX 6000 Ada Generation", 364.2, 182.1, 91.1, 728.5),
        ("NVIDIA RTX A6000", 154.8, 77.4, 38.7, None),
        ("NVIDIA RTX A5000", 111.1, UNSOURCED, 27.8, None),
        ("Quadro RTX 8000", 130.5, None, 16.3, None),
        ("Quadro RTX 6000", 130.5, None, 16.3, None),
        ("NVIDIA TITAN RTX", 130.5, None, 16.3, None),
        ("NVIDIA GeForce RTX 5090", 209.5, 104.8, 104.8, 419),
        ("NVIDIA GeForce RTX 4090", 165.2, 82.6, 82.6, 330.3),
        ("NVIDIA GeForce RTX 4080", 97.5, 48.7, 48.7, 194.9),
        ("NVIDIA GeForce RTX 3090 Ti", 80, 40, 40, None),
        ("NVIDIA GeForce RTX 3090", 71, 35.6, 35.6, None),
    ],
)
def test_peaks_are_the_dense_ones_of_the_data_sheet(
    product: str,
    fp16: float | None,
    tf32: float | None,
    fp32: float | None,
    fp8: float | None,
) -> None:
    sheet: dict[Precision, float | None] = {"fp16": fp16, "tf32": tf32, "fp32": fp32, "fp8": fp8}
    for precision, tflops in sheet.items():
        if tflops == UNSOURCED:
            continue
        known = peak_flops(product, precision)
        assert known == (None if tflops is None else pytest.approx(tflops * TERA, rel=0.01)), (
            precision
        )


@pytest.mark.parametrize(
    ("product", "bf16"),
    [
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA L40S", 362.05),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("Tesla T4", None),
        ("Tesla V100-SXM2-32GB", None),
        ("Quadro RTX 6000", None),
        ("Tesla P100-PCIE-16GB", None),
    ],
)
def test_bf16_has_the_peak_of_fp16_since_ampere(product: str, bf16: float | None) -> None:
    assert peak_flops(product, "bf16") == (None if bf16 is None else bf16 * TERA)


@pytest.mark.parametrize(
    ("product", "precision"),
    [
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16"),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "bf16"),
        ("NVIDIA GeForce RTX 4090 D", "bf16"),
        ("NVIDIA A100X", "bf16"),
        ("NVIDIA A100-SXM-64GB", "bf16"),
        ("NVIDIA A16", "bf16"),
        ("Some Card 9000", "fp32"),
    ],
)
def test_what_no_sheet_states_has_no_peak(product: str, precision: Precision) -> None:
    assert peak_flops(product, precision) is None


PRODUCTS = [
    ("NVIDIA A100-SXM4-40GB", 40960, "a100-40gb", "a100"),
    ("NVIDIA A100-PCIE-40GB", 40960, "a100-40gb", "A100_40GB"),
    ("NVIDIA A100-SXM4-80GB", 81920, "a100-80gb", "a100"),
    ("NVIDIA A100 80GB PCIe", 81920, "a100-80gb", "a100-80gb"),
    ("NVIDIA A100-SXM-64GB", 65536, "a100-64gb", "a100"),
    ("NVIDIA H100 80GB HBM3", 81559, "h100-80gb", "h100"),
    ("NVIDIA H100 PCIe", 81559, "h100-80gb", "H100-80GB"),
    ("NVIDIA H100 NVL", 95830, "h100-94gb", "h100"),
    ("NVIDIA H200", 143771, "h200", "h200-141gb"),
    ("NVIDIA B200", 183359, "b200", "b200"),
    ("NVIDIA GH200 480GB", 97871, "gh200-96gb", "gh200"),
    ("NVIDIA L4", 23034, "l4", "L4"),
    ("NVIDIA L40S", 46068, "l40s", "l40s-48gb"),
    ("Tesla T4", 15360, "t4", "t4"),
    ("Tesla V100-SXM2-16GB", 16160, "v100-16gb", "v100"),
    ("Tesla V100-SXM2-32GB", 32510, "v100-32gb", "v100"),
    ("Tesla P100-PCIE-16GB", 16280, "p100-16gb", "p100"),
    ("NVIDIA A10G", 23028, "a10g", "a10g"),
    ("NVIDIA A10", 23028, "a10", "a10"),
    ("NVIDIA A30", 24576, "a30", "a30"),
    ("NVIDIA GeForce RTX 4090", 24564, "rtx-4090", "rtx4090"),
    ("NVIDIA GeForce RTX 4090", 24564, "rtx-4090", "4090"),
    ("NVIDIA GeForce RTX 3090", 24576, "rtx-3090", "rtx"),
    ("NVIDIA RTX A6000", 49140, "rtx-a6000", "a6000"),
    ("NVIDIA RTX 6000 Ada Generation", 49140, "rtx-6000-ada", "RTX 6000 Ada"),
    ("Quadro RTX 6000", 24220, "quadro-rtx-6000", "quadro rtx 6000"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "rtx-pro-6000", "rtx"),
]


@pytest.mark.parametrize(("product", "mib", "exact", "written"), PRODUCTS)
def test_a_node_offers_an_exact_name_that_users_may_write_in_their_ways(
    product: str, mib: int, exact: str, written: str
) -> None:
    assert offered_name(product, mib / 1024) == exact
    assert not is_display_card(product, mib / 1024)
    assert exact in covered(written)
    assert covered(exact) == (exact,), "an exact name is no family"
    assert exact_name(exact) == exact


@pytest.mark.parametrize(
    ("product", "mib", "slug"),
    [
        ("Some Card 9000", 20480, "some-card-9000-20gb"),
        ("NVIDIA GeForce RTX 4090", 49140, "rtx-4090-48gb"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16376, "rtx-4090-laptop-gpu-16gb"),
        ("GRID A100-20C", 20480, "grid-a100-20c-20gb"),
        ("NVIDIA Graphics Device", 81920, "device-80gb"),
        ("", 81920, "gpu-80gb"),
    ],
)
def test_a_card_that_the_table_lacks_keeps_its_whole_name(
    product: str, mib: int, slug: str
) -> None:
    assert offered_name(product, mib / 1024) == slug
    assert covered(slug) == (slug,)
    assert slug not in covered("rtx")


@pytest.mark.parametrize(
    ("product", "mib"),
    [
        ("NVIDIA GeForce GT 710", 2048),
        ("Quadro P400", 2048),
        ("NVIDIA T400 4GB", 4096),
        ("NVIDIA T600", 4096),
        ("NVIDIA T1000 8GB", 8192),
        ("Quadro P2000", 5059),
    ],
)
def test_display_cards_are_known(product: str, mib: int) -> None:
    assert is_display_card(product, mib / 1024)


def test_a_family_is_the_best_first_and_a_name_of_earlier_logs_last() -> None:
    assert covered("a100") == ("a100-80gb", "a100-64gb", "a100-40gb", "a100")
    assert covered_by(["h200", "A100", "a100-40gb", "Strange"]) == (
        "h200",
        *covered("a100"),
        "strange",
    )
    assert exact_name("A100") == "a100"
    assert exact_name("rtx4090") == "rtx-4090"


@pytest.mark.parametrize(
    "written", [["a100"], ["h100", "a100-40gb"], ["rtx"], ["rtx-3080"], ["strange"]]
)
def test_readers_see_families_by_their_name(written: list[str]) -> None:
    assert in_short(covered_by(written)) == " or ".join(written)
