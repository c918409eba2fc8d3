"""The faults of `make chaos`."""

from __future__ import annotations

from chaos.catalog import FAULTS


def test_each_fault_has_a_name_of_its_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
