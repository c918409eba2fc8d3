"""`gangline plan` against published runs: how far its estimates are off, as the guide says.

`data/published_runs.csv` has dense models in 16 bit without offloading, context parallelism or
interleaved stages. `data/published_sources.csv` says where each was published. `tokens_s` is of one
GPU. `kept_back` rows were not used to choose the defaults of `layouts/speeds.py`.
"""

from __future__ import annotations

import csv
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import pytest

from gangline.layouts import speeds
from gangline.layouts.estimate import Cluster, Layout, Model, estimate
from gangline_schemas.gpus import memory_gb, peak_flops
from gangline_schemas.parallel import Shape

DATA = Path(__file__).parent / "data"
GUIDE = (Path(__file__).parents[3] / "docs" / "guides" / "plan-layouts.md").read_text()
NODE_GB_S = {"a100": 300.0, "h100": 450.0, "h200": 450.0}
SHARDED = {"fsdp", "hsdp", "zero2", "zero3"}
DIFFERENT = 1.05


@dataclass(frozen=True)
class Run:
    """A published run: tokens and MFU of a GPU, measured and estimated."""

    gpu: str
    group: tuple[str, ...]
    recompute: bool
    kept_back: bool
    source: str
    measured: float
    estimated: float
    mfu_of_tokens: float

    @property
    def ratio(self) -> float:
        return self.estimated / self.measured


def _run(row: dict[str, str]) -> Run:
    def of(name: str) -> int:
        return int(row[name])

    ranks = of("gpus") // of("tensor") // of("pipeline")
    # The distributed optimizer of Megatron moves what stages that stay gathered move.
    sharded = row["data_kind"] in SHARDED or (row["data_kind"] == "zero1" and of("pipeline") > 1)
    shard = int(row["shard"] or ranks) if sharded else 1
    shape = Shape(ranks // shard, shard, of("tensor"), of("pipeline"))
    model = Model(
        of("params"), of("layers"), of("dim"), of("heads"), of("seq_len"), of("vocabulary")
    )
    gpu = row["gpu"]
    memory, peak, moved = memory_gb(gpu), peak_flops(gpu, "bf16"), speeds.memory_gb_s(gpu)
    assert memory is not None
    assert peak is not None
    assert moved is not None
    cluster = Cluster(
        of("gpus"), of("gpus_per_node"), memory, peak, NODE_GB_S[gpu[:4]],
        float(row["network_gb_s"]), moved, speeds.kernels(gpu),
    )  # fmt: skip
    passes = of("batch_size") // ranks // of("micro_batch")
    layout = Layout(shape, of("batch_size"), passes, recompute=row["recompute"] == "1")
    assert layout.micro_batch == of("micro_batch")
    step_s = estimate(model, cluster, layout).step_s
    tokens = layout.batch_size * model.seq_len / cluster.gpus
    group = (row["params"], gpu, row["gpus"])
    return Run(
        gpu, group, layout.recompute, row["kept_back"] == "1", row["source"],
        float(row["tokens_s"]), tokens / step_s, model.flops_per_token / peak,
    )  # fmt: skip


def _rows(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(newline="") as lines:
        return list(csv.DictReader(lines))


RUNS = [_run(row) for row in _rows("published_runs.csv")]
CHOSEN: dict[str, Callable[[Run], bool]] = {
    "all": lambda run: True,
    "kept back": lambda run: run.kept_back,
    "a100-40gb": lambda run: run.gpu == "a100-40gb",
    "a100-80gb": lambda run: run.gpu == "a100-80gb",
    "h100-80gb": lambda run: run.gpu == "h100-80gb",
    "A100, recomputed": lambda run: run.gpu.startswith("a100") and run.recompute,
    "A100, not recomputed": lambda run: run.gpu.startswith("a100") and not run.recompute,
    "H100, recomputed": lambda run: run.gpu.startswith("h100") and run.recompute,
    "H100, not recomputed": lambda run: run.gpu.startswith("h100") and not run.recompute,
}


def _quartiles(runs: Iterable[Run]) -> tuple[float, float, float]:
    low, middle, high = statistics.quantiles((run.ratio for run in runs), n=4, method="inclusive")
    return low, middle, high


def _pairs(*, of_mfu: bool) -> dict[bool, tuple[int, int]]:
    """Pairs of one model, GPU model and count that differ by over 5 %: in order, and all.

    By whether they differ in recomputation.
    """
    groups: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    for run in RUNS:
        groups[run.group].append(run)
    right, pairs = Counter[bool](), Counter[bool]()
    for group in groups.values():
        for a, b in combinations(group, 2):
            scale = a.mfu_of_tokens / b.mfu_of_tokens if of_mfu else 1.0
            measured, estimated = scale * a.measured / b.measured, scale * a.estimated / b.estimated
            if max(measured, 1 / measured) > DIFFERENT:
                kind = a.recompute != b.recompute
                pairs[kind] += 1
                right[kind] += (measured > 1) == (estimated > 1)
    return {kind: (right[kind], pairs[kind]) for kind in (True, False)}


def test_the_guide_has_these_figures() -> None:
    lines = []
    for name, chosen in CHOSEN.items():
        low, middle, high = _quartiles(runs := [run for run in RUNS if chosen(run)])
        lines.append(f"| {name} | {len(runs)} | {middle:.2f} | {low:.2f} to {high:.2f} |")
    assert "\n".join(lines) in GUIDE
    prose = " ".join(GUIDE.split())
    right, pairs = map(sum, zip(*_pairs(of_mfu=False).values(), strict=True))
    assert f"{right} of {pairs} pairs by tokens a second" in prose
    by_mfu = _pairs(of_mfu=True)
    right, pairs = by_mfu[True]
    assert f"{right} of {pairs} pairs that differ in recomputation" in prose
    right, pairs = by_mfu[False]
    assert f"for {right} of {pairs} others" in prose
    worst = [min(run.ratio for run in RUNS), max(run.ratio for run in RUNS)]
    assert f"the worst are {worst[0]:.2f} and {worst[1]:.2f}" in prose


@pytest.mark.parametrize("name", CHOSEN)
def test_estimates_are_near_what_was_measured(name: str) -> None:
    low, middle, high = _quartiles(run for run in RUNS if CHOSEN[name](run))
    assert 0.85 <= middle <= 1.1
    assert low >= 0.8
    assert high <= 1.25


def test_half_of_the_runs_are_within_a_tenth() -> None:
    for runs in (RUNS, [run for run in RUNS if run.kept_back]):
        assert statistics.median(abs(run.ratio - 1) for run in runs) <= 0.1


def test_each_run_has_a_source() -> None:
    assert {run.source for run in RUNS} == {row["source"] for row in _rows("published_sources.csv")}
