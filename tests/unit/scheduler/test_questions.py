"""Why a job waits and until when; what a new job would do; nothing changes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline_scheduler.core import forecast, questions
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.configured import Limits
from gangline_scheduler.core.snapshot import fingerprint
from gangline_schemas.api.questions import JobExplained, WhatIfAnswer
from gangline_schemas.events.quota import JobAdmitted, TeamConfigured
from gangline_schemas.events.scheduling import GangAllocated, GpusReserved, JobWaiting
from gangline_schemas.job import JobSpec
from support.builders.deciding import START, every, spec, team
from support.builders.scheduler import Cluster, node

POLICY = Policy()
HOUR = timedelta(hours=1)


def explained(cluster: Cluster, job_id: str) -> JobExplained:
    found = questions.explain(cluster.state, job_id, cluster.now, POLICY)
    assert found is not None
    return found


def asked(cluster: Cluster, wanted: JobSpec) -> WhatIfAnswer:
    return questions.what_if(cluster.state, wanted, cluster.now, POLICY)


def test_a_job_starts_when_what_runs_is_expected_to_end() -> None:
    cluster = Cluster(node("n1", 4))
    cluster.run("long", 2, expected_runtime_hours=8)
    cluster.run("short", 2, expected_runtime_hours=3)
    cluster.submit("waits", 2)
    found = explained(cluster, "waits")
    assert (found.code, found.position, found.ahead) == ("capacity", 1, ())
    assert (found.gpus.wanted, found.gpus.free, found.gpus.total) == (2, 0, 4)
    assert found.outlook.eta == START + 3 * HOUR
    assert found.outlook.eta_is == "estimate"
    assert (found.outlook.nodes, found.outlook.level) == (("n1",), "node")


def test_the_jobs_ahead_take_what_ends_first() -> None:
    cluster = Cluster(node("n1", 4))
    cluster.run("first", 4, expected_runtime_hours=1)
    cluster.submit("second", 4, expected_runtime_hours=2)
    cluster.submit("third", 3, expected_runtime_hours=4, priority=60)
    found = explained(cluster, "third")
    assert found.position == 2
    assert [(job.job_id, job.gpus) for job in found.ahead] == [("second", 4)]
    assert found.ahead_gpus == 4
    assert found.outlook.eta == START + 3 * HOUR


def test_a_smaller_job_is_expected_in_the_gap_that_a_larger_one_leaves() -> None:
    cluster = Cluster(node("n1", 4))
    cluster.run("half", 2, expected_runtime_hours=1)
    cluster.run("rest", 2, expected_runtime_hours=5)
    cluster.submit("large", 4)
    cluster.submit("small", 2, expected_runtime_hours=1)
    assert explained(cluster, "small").outlook.eta == START + HOUR
    assert explained(cluster, "large").outlook.eta == START + 5 * HOUR


def test_the_parts_of_the_formula_add_up() -> None:
    cluster = Cluster(node("n1", 4))
    cluster.give(TeamConfigured(config=team("nlp", limit=64, guarantee=2)))
    cluster.run("runs", 4)
    cluster.submit("waits", 1, priority=40)
    cluster.tick(30 * 60)
    order = explained(cluster, "waits").order
    assert order is not None
    assert (order.priority, order.share_penalty, order.waiting_bonus) == (40, 50.0, 3.0)
    assert order.score == 40 + 50.0 - 3.0


def test_a_job_over_quota_waits_for_its_own_team() -> None:
    cluster = Cluster(node("n1", 8), limit=4)
    cluster.run("own", 4, expected_runtime_hours=2)
    cluster.run("other", 2, of_team="cv", expected_runtime_hours=1)
    cluster.submit("waits", 2)
    found = explained(cluster, "waits")
    assert found.code == "quota"
    assert found.quota is not None
    assert (found.quota.allocated, found.quota.ceiling, found.gpus.free) == (4, 4, 2)
    assert found.outlook.eta == START + 2 * HOUR


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ({"gpus": 9}, "shape"),
        ({"gpus": 1, "resources": {"gpu_type": ["h100"]}}, "gpu_type"),
        ({"gpus": 6, "topology": {"level": "node", "mode": "required"}}, "topology"),
    ],
)
def test_a_job_that_no_nodes_can_hold_gets_no_start(wanted: dict[str, object], code: str) -> None:
    cluster = Cluster(node("n1", 4), node("n2", 4))
    cluster.submit("never", **wanted)  # type: ignore[arg-type]
    found = explained(cluster, "never")
    assert (found.code, found.outlook.eta) == (code, None)
    assert "could hold it" in found.outlook.eta_reason
    answer = asked(cluster, spec("nlp", **wanted))  # type: ignore[arg-type]
    assert (answer.starts, answer.start) == ("never", None)


def test_more_than_the_team_may_ever_hold_gets_no_start() -> None:
    cluster = Cluster(node("n1", 8), limit=4)
    cluster.submit("wide", 6)
    found = explained(cluster, "wide")
    assert (found.code, found.outlook.eta) == ("quota", None)
    assert "may not have" in found.outlook.eta_reason


def test_far_back_in_the_queue_there_is_a_lower_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "MOST_AHEAD", 2)
    cluster = Cluster(node("n1", 1))
    cluster.run("runs", expected_runtime_hours=1)
    for number in range(4):
        cluster.submit(f"wait-{number}", expected_runtime_hours=1)
    near, far = explained(cluster, "wait-2").outlook, explained(cluster, "wait-3").outlook
    assert (near.eta, near.eta_is) == (START + 3 * HOUR, "estimate")
    assert (far.eta, far.eta_is) == (START + 3 * HOUR, "at_least")
    assert far.eta_reason


def test_only_who_waits_is_explained() -> None:
    cluster = Cluster(node("n1", 4))
    cluster.run("runs", 2)
    assert questions.explain(cluster.state, "runs", cluster.now, POLICY) is None
    assert questions.explain(cluster.state, "unknown", cluster.now, POLICY) is None


def test_the_error_of_what_a_team_said_is_told() -> None:
    cluster = Cluster(node("n1", 4))
    for number, hours in enumerate((1.0, 2.0, 4.0)):
        cluster.run(f"past-{number}", 4, expected_runtime_hours=hours)
        cluster.tick(2 * 3600)
        cluster.exit(f"past-{number}")
    cluster.run("runs", 4)
    cluster.submit("waits", 4)
    miss = explained(cluster, "waits").outlook.runtime_error
    assert miss is not None
    assert (miss.jobs, miss.median, miss.p90) == (3, 0.5, 0.9)


def test_estimates_are_compared_with_what_came() -> None:
    cluster = Cluster(node("n1", 2))
    cluster.decider = Scheduler(Limits(), Policy(estimate_starts=True))
    cluster.run("runs-0", 2, expected_runtime_hours=1)
    for number in range(3):
        cluster.submit(f"runs-{number + 1}", 2, expected_runtime_hours=1)
        (told,) = [event for event in every(cluster.tick(), JobWaiting) if event.eta is not None]
        assert told.eta == cluster.now + HOUR
        assert every(cluster.tick(60), JobWaiting) == [], "it is said once"
        cluster.tick(3600 - 60 + 600 * number)
        cluster.exit(f"runs-{number}")
        cluster.start(f"runs-{number + 1}")
    assert [wait.actual_s - wait.estimated_s for wait in cluster.state.waits] == [
        0.0,
        600.0,
        1200.0,
    ]
    cluster.submit("waits", 1)
    error = explained(cluster, "waits").outlook.wait_error
    assert error is not None
    assert (error.jobs, error.median_s, error.p90_s) == (3, 600.0, 1080.0)
    assert fingerprint(cluster.replayed()) == fingerprint(cluster.state)


def test_what_if_names_nodes_level_and_gpus() -> None:
    cluster = Cluster(node("n1", 4), node("n2", 4))
    cluster.run("runs", 3)
    answer = asked(cluster, spec("cv", 4))
    assert (answer.starts, answer.start, answer.level) == ("now", cluster.now, "node")
    assert [(part.node_id, part.gpus) for part in answer.nodes] == [("n2", 4)]
    assert answer.preempts == ()


def test_what_if_gives_the_start_of_a_job_that_would_wait() -> None:
    cluster = Cluster(node("n1", 4))
    cluster.run("runs", 3, expected_runtime_hours=2)
    answer = asked(cluster, spec("nlp", 2))
    assert (answer.starts, answer.start) == ("later", START + 2 * HOUR)
    assert answer.waiting is not None
    assert (answer.waiting.code, answer.waiting.position) == ("capacity", 1)


def test_what_if_names_whom_it_would_preempt_and_at_what_cost() -> None:
    cluster = Cluster(node("n1", 4))
    cluster.run("cheap", 2, priority=80, preemptible=True, expected_runtime_hours=9)
    cluster.run("kept", 2, priority=80, expected_runtime_hours=9)
    cluster.tick(20 * 60)
    before = fingerprint(cluster.state)
    wanted = spec("cv", 2, priority=5, expected_runtime_hours=1)
    answer = asked(cluster, wanted)
    assert fingerprint(cluster.state) == before
    assert answer.starts == "after_preemption"
    assert [(item.job_id, item.team, item.gpus) for item in answer.preempts] == [
        ("cheap", "nlp", 2)
    ]
    assert answer.value_gpu_seconds > answer.cost_gpu_seconds > 0
    admitted = JobAdmitted(job_id="it", spec=wanted, user="ada", submitted_at=cluster.now)
    (held,) = every([*cluster.give(admitted), *cluster.tick()], GpusReserved)
    assert [(part.node_id, part.gpus) for part in answer.nodes] == [
        (part.node_id, part.gpus) for part in held.nodes
    ]
    assert (held.victims, held.cost_gpu_seconds) == (("cheap",), answer.cost_gpu_seconds)
    gang = cluster.job("cheap").gang
    assert gang is not None
    assert gang.stop is not None
    assert answer.start == gang.stop.deadline
    told = explained(cluster, "it")
    assert told.freed is not None
    assert (told.freed.reason, told.freed.victims) == (held.reason, 1)
    assert told.outlook.eta == gang.stop.deadline


def test_what_if_starts_nothing_on_an_outdated_node() -> None:
    cluster = Cluster(node("n1", 4, release="0.2.0"), oldest_agents="0.3.0")
    answer = asked(cluster, spec("nlp", 1))
    assert (answer.starts, answer.nodes) == ("never", ())


def test_what_if_of_an_unknown_run_to_resume_from_says_so() -> None:
    cluster = Cluster(node("n1", 4))
    answer = asked(cluster, spec("nlp", 1, resume_from="gone"))
    assert (answer.starts, "resume_from" in answer.message) == ("never", True)


JOBS = st.lists(
    st.tuples(
        st.integers(1, 6), st.sampled_from(["nlp", "cv"]), st.integers(0, 100), st.integers(1, 9)
    ),
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(jobs=JOBS, gpus=st.integers(1, 8), minutes=st.integers(0, 90))
def test_an_answer_comes_true_and_changes_nothing(
    jobs: list[tuple[int, str, int, int]], gpus: int, minutes: int
) -> None:
    cluster = Cluster(node("n1", 4), node("n2", 4, rack="r2"), node("n3", 2, rack="r2"), limit=8)
    for number, (size, name, priority, hours) in enumerate(jobs):
        cluster.submit(
            f"j{number}", size, of_team=name, priority=priority, expected_runtime_hours=hours
        )
    cluster.tick(minutes * 60)
    before = fingerprint(cluster.state)
    wanted = spec("cv", gpus)
    answer = asked(cluster, wanted)
    for job_id in [*cluster.state.pending]:
        explained(cluster, job_id)
    assert fingerprint(cluster.state) == before
    admitted = JobAdmitted(job_id="it", spec=wanted, user="ada", submitted_at=cluster.now)
    events = [*cluster.give(admitted), *cluster.tick()]
    (got, *_) = [item for item in every(events, GangAllocated) if item.job_id == "it"] or [None]
    assert (got is not None) == (answer.starts == "now")
    if got is not None:
        assert [(part.node_id, part.gpus) for part in got.nodes] == [
            (part.node_id, part.indexes) for part in answer.nodes
        ]
    else:
        assert answer.start is None or answer.start > cluster.now
