"""The gateway's live nodes: status, heartbeats, ranks, failed checks, outdated agents."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gangline_gateway import gang_heartbeats, present
from gangline_gateway.gpu_map import first_ranks, map_node
from gangline_schemas.api.jobs import Ranks
from gangline_schemas.events.faults import (
    NodeDistrusted,
    NodeFailed,
    NodeRecovered,
    WorkerStraggling,
)
from gangline_schemas.events.heartbeats import GpuStatus, RankActivity, RankStatus, WorkerHeartbeat
from gangline_schemas.events.scheduling import NodeAdmitted, NodeCordoned, NodeUncordoned
from support.builders.live_job import (
    JOINED,
    PENDING,
    RELEASED,
    allocated,
    beat_of,
    details,
    moved,
    node_info,
    node_of,
    queued,
    shown,
    unfit,
)
from support.builders.read_model import NOW, fold


def test_a_node_shows_its_status_and_what_its_heartbeat_says() -> None:
    model = fold([JOINED, queued(), allocated()])
    beat = WorkerHeartbeat(
        node_id="n0", incarnation="i", sequence=1, sent_at=NOW, cpu_percent=12.0,
        gpus=(GpuStatus(index=0, utilization=80), GpuStatus(index=1, utilization=60)),
    )  # fmt: skip
    model.live.take_heartbeat("n0", NOW, beat.encode())
    answer = shown(model)
    assert (answer.status, answer.gpus_used, answer.jobs) == ("ready", 2, ["a"])
    assert (answer.last_heartbeat, answer.cpu_percent) == (NOW, 12.0)
    assert gang_heartbeats.of_gang(model.view(), details(model), NOW) == (70, None)
    assert present.node(model.view(), node_of(model), frozenset({"vision"})).jobs == []
    fold([NodeFailed(node_id="n0", incarnation="i", reason="silent")], model)
    assert node_of(model).status == "failed"
    fold([NodeRecovered(node_id="n0", incarnation="i", was="failed")], model)
    fold([NodeCordoned(node_id="n0", incarnation="i", reason="drain")], model)
    assert node_of(model).status == "cordoned"
    fold([NodeCordoned(node_id="n0", incarnation="i", reason="drain", move_jobs=True)], model)
    assert node_of(model).status == "draining"
    fold([NodeAdmitted(node=node_info("i2"))], model)
    assert node_of(model).status == "ready"
    assert shown(model).cpu_percent is None


def test_a_job_shows_what_its_ranks_do_and_who_got_on_the_longest_ago() -> None:
    model = fold([JOINED, queued(), allocated(), RELEASED, moved(PENDING), allocated(2)])
    trains = RankStatus(rank=0, pid=1, step=7, activity=RankActivity.TRAINING, quiet_s=3)
    waits = RankStatus(rank=1, pid=2, step=7, activity=RankActivity.WAITING, quiet_s=40)
    silent = RankStatus(rank=0, pid=1)
    later = NOW + timedelta(seconds=2)

    model.live.take_heartbeat("n0", NOW, beat_of(2, trains, waits))
    found = gang_heartbeats.of_gang(model.view(), details(model), later).ranks
    assert found is not None
    assert found.doing == {"training": 1, "waiting": 1}
    quietest = found.quietest
    assert quietest is not None
    assert (quietest.rank, quietest.node_id, quietest.quiet_s) == (1, "n0", 42)

    model.live.take_heartbeat("n0", NOW, beat_of(2, silent))
    found = gang_heartbeats.of_gang(model.view(), details(model), later).ranks
    assert found == Ranks(doing={"running": 1}, quietest=None)

    model.live.take_heartbeat("n0", NOW, beat_of(1, trains, waits))
    found = gang_heartbeats.of_gang(model.view(), details(model), later).ranks
    assert found is None, "an old attempt"


def test_each_rank_of_a_gang_has_a_row_with_what_its_agent_said() -> None:
    model = fold([JOINED, queued(), allocated()])
    trains = RankStatus(
        rank=0, pid=1, step=7, activity=RankActivity.TRAINING, quiet_s=3, busy_s=0.25
    )
    later = NOW + timedelta(seconds=2)
    model.live.take_heartbeat("n0", NOW, beat_of(1, trains))
    rows = gang_heartbeats.rank_rows(model.view(), details(model), later, range(10))
    first, silent = rows
    assert (first.rank, first.node_id, first.gpu, first.status) == (0, "n0", 0, "unseen")
    assert (first.activity, first.step, first.quiet_s, first.busy_s) == ("training", 7, 5, 0.25)
    assert (silent.rank, silent.activity, silent.quiet_s) == (1, None, None)
    assert gang_heartbeats.rank_rows(model.view(), details(model), later, range(1, 2)) == [silent]


def test_a_node_shows_a_slow_rank_while_its_gang_runs() -> None:
    slow = WorkerStraggling(
        job_id="a", attempt=1, rank=1, node_id="n0", busy_s=0.8, usual_s=0.4, against="gang",
        relative=0.5, individual=1.0, host=0.75, message="rank 1 on n0 works 0.800 s a step",
        since=NOW, noted_at=NOW,
    )  # fmt: skip
    model = fold([JOINED, queued(), allocated(), slow])
    assert shown(model).straggler == slow.message
    fold([RELEASED, moved(PENDING), allocated(2)], model)
    assert shown(model).straggler == ""


def test_a_node_that_fails_its_check_is_shown_until_it_joins() -> None:
    model = fold([unfit("its disk is bad")])
    answer = shown(model)
    assert (answer.status, answer.why) == ("unfit", "its disk is bad; and more")
    fold([JOINED], model, after_s=10)
    fold([unfit("its disk is bad")], model, after_s=11)  # it is read again
    answer = shown(model)
    assert (answer.status, answer.why) == ("ready", "")
    again = [
        unfit("its clock is off", "i2", after_s=20),
        NodeFailed(node_id="n0", incarnation="i", reason="silent"),
        NodeCordoned(node_id="n0", incarnation="i", reason="failed"),
    ]
    for events in (again, [JOINED]):  # in any order
        fold(events, model, after_s=10)
        assert (node_of(model).status, node_of(model).info.incarnation) == ("unfit", "i2")
    fold([NodeAdmitted(node=node_info("i2"))], model, after_s=30)
    assert node_of(model).status == "ready"


@pytest.mark.parametrize(
    ("reason", "why"), [("", "it failed 5 times"), ("GPU 0 reported Xid 79",) * 2]
)
def test_a_distrusted_node_says_why(reason: str, why: str) -> None:
    distrusted = NodeDistrusted(
        node_id="n0", incarnation="i", failures=5, jobs=2, since=NOW, distrusted_at=NOW,
        reason=reason,
    )  # fmt: skip
    cordoned = NodeCordoned(node_id="n0", incarnation="i", reason="drain")
    model = fold([JOINED, distrusted, cordoned])
    answer = shown(model)
    assert (answer.status, answer.why) == ("cordoned", why)
    fold([NodeUncordoned(node_id="n0", incarnation="i")], model)
    assert node_of(model).reasons == ""


@pytest.mark.parametrize(
    ("release", "agent"), [("0.1.0", "0.1.0"), (None, "of an unreported release")]
)
def test_an_outdated_node_says_what_to_upgrade(release: str | None, agent: str) -> None:
    info = node_info().model_copy(update={"release": release})
    outdated = NodeCordoned(
        node_id="n0", incarnation="i", reason="outdated", oldest_accepted="0.3.0"
    )
    model = fold([NodeAdmitted(node=info), outdated])
    why = f"its agent is {agent}, the oldest accepted is 0.3.0; upgrade the agent"
    answer = shown(model)
    assert (answer.status, answer.why) == ("outdated", why)
    fold([NodeCordoned(node_id="n0", incarnation="i", reason="drain", move_jobs=True)], model)
    answer = shown(model)
    assert (answer.status, answer.why) == ("draining", why)
    fold([NodeUncordoned(node_id="n0", incarnation="i")], model)
    assert node_of(model).status == "outdated", "the end of a drain does not upgrade its agent"
    assert node_of(model.restarted()).status == "outdated"
    fold([NodeAdmitted(node=info.model_copy(update={"release": "0.3.0"}))], model)
    answer = shown(model)
    assert (answer.status, answer.why) == ("ready", "")


def test_a_broken_heartbeat_is_no_heartbeat() -> None:
    model = fold([JOINED])
    model.live.take_heartbeat("n0", NOW, b"\xff not json")
    assert shown(model).cpu_percent is None


@pytest.mark.parametrize("value", [b"1e999", b"-Infinity", b"NaN", b'"80"', b"{}"])
def test_a_heartbeat_with_a_wrong_utilization_leaves_the_map(value: bytes) -> None:
    model = fold([JOINED])
    beat = b'{"incarnation": "i", "gpus": [{"index": 0, "utilization": %b}]}' % value
    model.live.take_heartbeat("n0", NOW, beat)
    assert (
        map_node(model.view(), node_of(model), None, first_ranks(model.view())).utilization is None
    )
