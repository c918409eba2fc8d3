"""What the simulated nodes of `python -m load` write is what services read."""

from __future__ import annotations

from typing import Any

from gangline_bus.codec import decode
from gangline_bus.ports import OutRecord, Record
from gangline_schemas.events.scheduling import GangAllocated
from load.nodes import METRICS, SimulatedNode
from support.builders.deciding import spec
from support.builders.gangs import assigned, gang_allocated


def read(record: OutRecord) -> Any:
    made = Record(record.topic, 0, 0, record.key, record.value, record.headers, 0)
    return decode(made, own=True).data  # its own: unknown fields are errors


def allocated(node: SimulatedNode, first_rank: int) -> GangAllocated:
    part = assigned(node.node_id, first_rank=first_rank, incarnation=node.life)
    return gang_allocated("a", spec("nlp", 4), part, attempt=2, world_size=4)


def test_a_node_joins_beats_and_runs_its_ranks() -> None:
    node = SimulatedNode(17)
    joined = read(node.joined())
    assert (joined.node.rack, len(joined.node.gpus)) == ("rack-1", 8)
    started = [read(record) for record in node.start(allocated(node, 0))]
    assert [(event.rank, event.incarnation) for event in started] == [
        (0, node.life),
        (1, node.life),
    ]
    gang = node.gangs["a", 2]
    steps, log = (read(record) for record in node.report(gang, 40, 3))
    assert (len(steps.step), set(steps.metrics)) == (10, set(METRICS))
    assert [log.first_line, len(log.lines)] == [0, 3]
    first, second = read(node.beat()), read(node.beat())
    assert (first.health is None, second.health is None) == (False, True)
    assert [rank.step for rank in second.gangs[0].ranks] == [10, 10]
    exited = [read(record) for record in node.end(("a", 2), "finished")]
    assert [event.exit_code for event in exited] == [0, 0]
    assert (node.gangs, node.end(("a", 2), "finished")) == ({}, [])


def test_a_new_life_has_no_gangs_and_takes_none_of_the_old_one() -> None:
    node = SimulatedNode(0)
    old = allocated(node, 0)
    node.start(old)
    assert read(node.renew()).node.incarnation == "sim-0-1"
    assert (node.gangs, node.start(old)) == ({}, [])
