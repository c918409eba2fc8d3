"""Muri's trace 3 on 64 GPUs: SRTF and SRSF give its simulator's published figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline_scheduler.simulator.cluster import one_pool
from gangline_scheduler.simulator.measure import Measures, measure
from gangline_scheduler.simulator.run import simulate, workload
from gangline_scheduler.simulator.trace import read_trace

TRACE = Path(__file__).parent / "data" / "muri_trace3.csv.gz"


@pytest.fixture(scope="module")
def figures() -> dict[str, Measures]:
    work = workload(TRACE, read_trace(TRACE), one_pool(8))
    return {name: measure(name, simulate(name, work)) for name in ("muri-srtf", "muri-srsf")}


def test_srsf_is_better_than_srtf_as_published(figures: dict[str, Measures]) -> None:
    for name, found in figures.items():
        print(f"\n{name}: JCT {found.jct_avg_s:,.3f}, makespan {found.makespan_s:,.3f}")
    assert figures["muri-srsf"].jct_avg_s < figures["muri-srtf"].jct_avg_s


def test_both_give_the_published_averages(figures: dict[str, Measures]) -> None:
    assert figures["muri-srtf"].jobs == 992
    assert figures["muri-srtf"].jct_avg_s == pytest.approx(193_081.796, abs=0.001)
    assert figures["muri-srsf"].jct_avg_s == pytest.approx(185_021.880, abs=0.001)


def test_srtf_gives_the_published_makespan_and_tail(figures: dict[str, Measures]) -> None:
    assert figures["muri-srtf"].makespan_s == pytest.approx(8_174_135.280, abs=0.001)
    assert figures["muri-srtf"].jct_p99_s == pytest.approx(4_538_890.607, abs=0.001)
