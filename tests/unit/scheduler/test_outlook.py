"""The outlook of a queue: starts of its first jobs, reservations, GPUs that are being freed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gangline_scheduler.core import outlook as module
from gangline_scheduler.core import questions
from gangline_scheduler.core.outlook import outlook
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.snapshot import fingerprint
from gangline_schemas.events.quota import TeamConfigured
from support.builders.deciding import START, team
from support.builders.scheduler import Cluster, node

POLICY = Policy()
HOUR = timedelta(hours=1)


def test_each_of_the_first_jobs_has_its_start_and_end() -> None:
    cluster = Cluster(node("n1", 4))
    cluster.run("runs", 4, expected_runtime_hours=1)
    cluster.submit("second", 4, expected_runtime_hours=2)
    cluster.submit("third", 3, expected_runtime_hours=4, priority=60)
    before = fingerprint(cluster.state)
    found = outlook(cluster.state, cluster.now, POLICY, shard=2)
    assert (found.shard, found.order, found.gpus_free, found.gpus_total) == (2, "fair", 0, 4)
    assert [(item.position, item.job_id, item.start, item.end) for item in found.starts] == [
        (1, "second", START + HOUR, START + 3 * HOUR),
        (2, "third", START + 3 * HOUR, START + 7 * HOUR),
    ]
    assert found.starts[1].nodes == ("n1",)
    assert fingerprint(cluster.state) == before, "a question changes nothing"


def test_the_starts_are_those_of_explain() -> None:
    cluster = Cluster(node("n1", 4))
    cluster.run("half", 2, expected_runtime_hours=1)
    cluster.run("rest", 2, expected_runtime_hours=5)
    cluster.submit("large", 4)
    cluster.submit("small", 2, expected_runtime_hours=1)
    for item in outlook(cluster.state, cluster.now, POLICY).starts:
        assert item.job_id is not None
        explained = questions.explain(cluster.state, item.job_id, cluster.now, POLICY)
        assert explained is not None
        assert item.start == explained.outlook.eta


def test_a_job_that_nothing_can_hold_has_no_start_and_one_too_far_off_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(node("n1", 1))
    cluster.run("runs", expected_runtime_hours=1)
    cluster.submit("wide", 9, priority=99)
    for number in range(3):
        cluster.submit(f"wait-{number}", expected_runtime_hours=1)
    starts = {item.job_id: item for item in outlook(cluster.state, cluster.now, POLICY).starts}
    assert (starts["wide"].start, starts["wide"].end) == (None, None)
    monkeypatch.setattr(module, "ENDS", 2)
    near, *_, far = outlook(cluster.state, cluster.now, POLICY).starts[:3]
    assert (near.start, near.start_is) == (START + HOUR, "estimate")
    assert (far.start_is, far.end) == ("at_least", None)


def test_a_job_that_waited_long_has_a_reservation_with_its_nodes() -> None:
    cluster = Cluster(node("n1", 2), node("n2", 2))
    cluster.run("long", 2, expected_runtime_hours=8)
    cluster.submit("wide", 4, expected_runtime_hours=1)
    cluster.tick(40 * 60)
    (item,) = outlook(cluster.state, cluster.now, POLICY).reserved
    assert (item.kind, item.job_id, item.gpus, item.kept_now) == ("reservation", "wide", 4, 2)
    assert (item.start, item.end) == (START + 8 * HOUR, START + 9 * HOUR)
    assert {(part.node_id, part.gpus) for part in item.nodes} == {("n1", 2), ("n2", 2)}


def test_gpus_that_gangs_free_for_a_job_are_shown_until_they_are_promised() -> None:
    cluster = Cluster(node("n1", 4))
    cluster.give(TeamConfigured(config=team("cv", guarantee=4)))
    cluster.run("cheap", 4, priority=80, preemptible=True, expected_runtime_hours=9)
    cluster.tick(20 * 60)
    cluster.submit("urgent", 4, of_team="cv", priority=5, expected_runtime_hours=1)
    cluster.tick()
    (item,) = outlook(cluster.state, cluster.now, POLICY).reserved
    promised = cluster.state.reserved["urgent"]
    assert (item.kind, item.job_id, item.team, item.victims) == ("freed", "urgent", "cv", 1)
    assert (item.start, item.end, item.reason) == (cluster.now, promised.until, promised.reason)
