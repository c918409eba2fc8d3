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
