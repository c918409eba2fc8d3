"""Models as lists show them."""

from __future__ import annotations

from collections.abc import ItemsView, ValuesView
from typing import Any

from gangline_gateway import registry_state
from gangline_registry.core.model import CompareProfiles, ProfilesCompared
from gangline_schemas.events.model_requests import GateRequested
from gangline_schemas.models import ColumnDrift
from support.builders.registry import MODEL, OLD, TEAM, RegistryRun, gate


class Counted(dict[str, Any]):
    """How often all values are looked at."""

    passes = 0

    def items(self) -> ItemsView[str, Any]:
        self.passes += 1
        return super().items()


class NotScanned(dict[str, Any]):
    """Values that must not be passed over one by one."""

    def values(self) -> ValuesView[Any]:
        raise AssertionError("all were looked at")


def test_a_model_is_found_without_a_look_at_all_versions() -> None:
    run = RegistryRun(gate())
    for number in (2, 1, 3):
        run.version(number)
    run.feed(GateRequested(config=gate(team="vision", model="theirs"), user="eve"))
    run.state.versions = NotScanned(run.state.versions)
    assert registry_state.names(run.state, lambda team: team != "vision") == [(TEAM, MODEL)]
    (row, _) = registry_state.rows(run.state, lambda _: True)
    assert (row.model, row.versions, row.newest_version) == (MODEL, 3, 3)
    shown = registry_state.detail(run.state, (TEAM, MODEL))
    assert [one.version for one in shown.version_list] == [3, 2, 1]


def test_a_list_of_models_looks_at_all_judgements_of_data_once() -> None:
    run = RegistryRun(gate(training_data={"datasets": ["sales", "visits"]}))
    run.profiled(OLD)
    run.version(1, snapshot=OLD, qa="first")
    run.promote(1)
    for number in range(3):
        other = gate(model=f"other-{number}", aliases=["champion", "stable"])
        run.feed(GateRequested(config=other, user="ana"))
    moved = ProfilesCompared((ColumnDrift(column="price", kind="number", reasons=("moved",)),))
    for name in ("sales", "visits"):
        run.profiled(f"{name}@xxh3-" + "2" * 32)
        for key, one in run.effects().items():
            if isinstance(one, CompareProfiles):
                run.done(key, moved)
    run.state.data = Counted(run.state.data)
    found = {one.model: one for one in registry_state.rows(run.state, lambda _: True)}
    assert run.state.data.passes == 1
    assert [one.drift for one in found[MODEL].aliases] == [2]
    assert [one.drift for one in found["other-0"].aliases] == [0, 0]
    assert registry_state.detail(run.state, (TEAM, MODEL)).aliases == found[MODEL].aliases
