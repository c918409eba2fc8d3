"""Every decider folds every type of its own log, and decides without changing anything."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gangline_bus.decision import Fold, UnfoldedEvent
from gangline_schemas.catalog import Topic, catalog
from gangline_schemas.events.faults import NodeRecovered, NodeSuspected
from support.deciders import DECIDERS

AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("name", DECIDERS)
def test_every_type_of_the_own_log_is_folded(name: str) -> None:
    assert DECIDERS[name].make().fold.missing() == frozenset()


def test_every_decision_log_is_of_a_decider() -> None:
    logs = {topic: entry.owner for topic, entry in catalog().items() if entry.kind == "log"}
    assert {known.make().log: name for name, known in DECIDERS.items()} == logs
    assert all(known.make().name == name for name, known in DECIDERS.items())


def test_an_event_without_a_function_ends_the_fold() -> None:
    fold: Fold[list[str]] = Fold(Topic.FAULTS)
    fold.on(NodeRecovered)(lambda state, event, _: state.append(event.node_id))
    recovered = NodeRecovered(node_id="n1", incarnation="i1", was="failed")
    assert fold([], recovered, AT) == ["n1"]
    with pytest.raises(UnfoldedEvent, match=r"node\.suspected is not an event of gangline\.faults"):
        fold([], NodeSuspected(node_id="n1", incarnation="i1", silent_s=3.0), AT)
    assert "node.suspected" in fold.missing()


def test_a_type_has_one_function() -> None:
    fold: Fold[list[str]] = Fold(Topic.FAULTS)
    fold.on(NodeRecovered)(lambda state, event, _: state.append(event.node_id))
    with pytest.raises(ValueError, match="two functions"):
        fold.on(NodeRecovered)(lambda state, event, _: state.remove(event.node_id))
