"""A cell of the fault matrix, drawn by GANGLINE_CHAOS_SEED; `make chaos` runs all of it.

Those on one machine: nodes that stand apart take an S3 server and disks of their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random

import pytest

from chaos.catalog import FAULTS, STRATEGIES
from chaos.fault import Fault
from chaos.matrix import ENDS_S, Matrix
from chaos.places import on_one_machine
from support.harnesses.log_watch import LogWatch

CELLS = 1
ALL = [
    (fault, strategy) for fault in FAULTS for strategy in STRATEGIES if fault.place == "one machine"
]
SEED = int(os.environ.get("GANGLINE_CHAOS_SEED", "7"))
DRAWN = Random(SEED).sample(ALL, CELLS)
pytestmark = pytest.mark.timeout(2 * ENDS_S)


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    with (
        on_one_machine(tmp_path_factory.mktemp("chaos")) as platform,
        LogWatch(platform.client.bootstrap_servers) as watch,
    ):
        yield Matrix(platform, watch)
        watch.assert_sound()


def test_each_fault_has_a_name_of_its_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize(
    ("fault", "strategy"), DRAWN, ids=[f"{fault.name}, {strategy}" for fault, strategy in DRAWN]
)
def test_the_job_ends_as_if_nothing_had_happened(
    matrix: Matrix, fault: Fault, strategy: str
) -> None:
    assert matrix.cell(fault, strategy).problem == ""
