"""Every decider folds every type of its own log, and decides without changing anything."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gangline_bus.decision import BaseDecider, Fold, UnfoldedEvent
from gangline_checkpoints.core.decide import CheckpointDecider
from gangline_faults.core.decide import FaultDecider
from gangline_quota.core.decide import Quota
from gangline_scheduler.core.decide import Scheduler
from gangline_schemas.catalog import Topic
from gangline_schemas.events.faults import NodeRecovered, NodeSuspected

AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("decider", [CheckpointDecider(), FaultDecider(), Quota(), Scheduler()])
def test_every_type_of_the_own_log_is_folded(decider: BaseDecider[Any, Any]) -> None:
    assert decider.fold.missing() == frozenset()


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
