"""The scheduler writes the settings that it decides by into its log, and the fold follows them."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import timedelta

import pytest
from pydantic import ValidationError

from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.policy.config import ORDERS, Policy, Preemption
from gangline_scheduler.core.policy.configured import Limits, configured, limits_of, policy_of
from gangline_scheduler.core.policy.order import in_order
from gangline_scheduler.core.snapshot import codec, fingerprint
from gangline_scheduler.core.state import State
from gangline_scheduler.service.config import SchedulerSettings
from gangline_schemas.events.policy import PolicyConfigured, PreemptionSettings
from gangline_schemas.events.quota import JobAdmitted
from gangline_schemas.isolation import Isolation
from support.builders.deciding import every
from support.builders.scheduler import Cluster, node

OTHER = Policy(
    levels=("rack",),
    mix_from=Isolation.USER,
    reservation="off",
    reserve_after=timedelta(seconds=0.25),
    estimate_starts=True,
    actions=("expire", "explain"),
    preemption=Preemption(preempt="off", reclaim_worth=timedelta(hours=2), most_per_pass=1),
)


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_the_log_names_a_whole_policy(order: str) -> None:
    policy = replace(OTHER, order=ORDERS[order])
    limits = Limits(save_wait=timedelta(seconds=7), oldest_agents="0.3.0")
    event = PolicyConfigured.decode(configured(policy, limits).encode())
    assert policy_of(event) == policy
    assert limits_of(event) == limits


def test_each_field_of_a_policy_is_in_the_event() -> None:
    said = {name.removesuffix("_s") for name in PolicyConfigured.model_fields}
    known = {field.name for kind in (Policy, Limits) for field in fields(kind)}
    assert said == known - {"placer", "give_reasons"}, "a log has one placer, and reasons"
    preemption = {name.removesuffix("_s") for name in PreemptionSettings.model_fields}
    assert preemption == {field.name for field in fields(Preemption)}


def test_it_is_written_once_and_again_when_settings_changed() -> None:
    cluster = Cluster(node())
    cluster.tick(60)
    said = [item.event for item, _ in cluster.log if isinstance(item.event, PolicyConfigured)]
    assert said == [configured(Policy(), Limits())]

    cluster.decider = Scheduler(policy=OTHER)
    assert every(cluster.tick(1), PolicyConfigured) == [configured(OTHER, Limits())]
    assert every(cluster.tick(1), PolicyConfigured) == []


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_a_queue_goes_on_in_the_order_of_the_new_settings(order: str) -> None:
    """A successor with another order folds the old one's log; no waiting job is lost."""
    cluster = Cluster(node(gpus=2))
    cluster.submit("first", 2, expected_runtime_hours=30)
    cluster.submit("long", 2, expected_runtime_hours=20, priority=40)
    cluster.tick(60)
    cluster.submit("short", 2, expected_runtime_hours=1, priority=60)
    cluster.tick(60)

    cluster.decider = Scheduler(policy=Policy(order=ORDERS[order]))
    cluster.submit("last", 2, priority=99)

    state = cluster.state
    assert state.policy is not None
    assert state.policy.order == order
    waiting = [job.job_id for job in in_order(ORDERS[order], lambda: state, cluster.now)]
    assert sorted(waiting) == ["last", "long", "short"]
    assert fingerprint(cluster.replayed()) == fingerprint(state)


def test_a_reader_without_settings_has_the_queue_and_levels_of_the_log() -> None:
    """As the gateway and the command line fold the log: by what it says alone."""
    policy = replace(OTHER, order=ORDERS["sjf"])
    cluster = Cluster(node(gpus=1), policy=policy)
    cluster.submit("runs")
    cluster.submit("long", expected_runtime_hours=20)
    cluster.submit("short", expected_runtime_hours=1)

    reader = Scheduler()
    state = reader.initial()
    for decision, at in cluster.log:
        state = reader.evolve(state, decision, at)
    kept = codec(State)
    restored = kept.load(kept.dump(kept.copy(state)))

    for found in (state, restored):
        assert found.levels == ("rack",)
        assert found.mix_from is Isolation.USER
        waiting = [job.job_id for job in in_order(policy.order, lambda s=found: s, cluster.now)]
        assert waiting == ["short", "long"]
        assert found.free == cluster.state.free
        assert found.empty == cluster.state.empty


def test_an_order_of_a_later_version_leaves_the_queue_as_it_is() -> None:
    cluster = Cluster(node(gpus=1))
    cluster.submit("runs")
    cluster.submit("waits")
    later = configured(Policy(), Limits()).model_copy(update={"order": "later"})
    state = Scheduler.fold(cluster.state, later, cluster.now)
    assert list(state.queue.ids()) == ["waits"]
    with pytest.raises(ValueError, match="'later' is not one of"):
        policy_of(later)


def test_an_action_of_a_later_version_is_named() -> None:
    later = configured(Policy(), Limits()).model_copy(update={"actions": ("expire", "hibernate")})
    with pytest.raises(ValueError, match="hibernate"):
        policy_of(later)


def test_a_repeated_input_leads_to_nothing_under_new_settings_either() -> None:
    """Under them it would stop the running gang at its first submission."""
    patient, hasty = (
        Policy(preemption=Preemption(min_runtime=timedelta(minutes=minutes))) for minutes in (60, 0)
    )
    cluster = Cluster(node(gpus=4), policy=patient)
    cluster.run("low", 4, priority=90, preemptible=True)
    cluster.submit("urgent", 4, priority=1)
    cluster.decider = Scheduler(policy=hasty)
    before = len(cluster.log)

    spec = cluster.job("urgent").spec
    cluster.give(JobAdmitted(job_id="urgent", spec=spec, user="ada", submitted_at=cluster.now))
    assert [decision.event.type for decision, _ in cluster.log[before:]] == ["policy.configured"]

    cluster.submit("other", 4, priority=1)
    assert "gang.stopping" in [decision.event.type for decision, _ in cluster.log[before:]]


@pytest.mark.parametrize(
    "setting",
    ["reserve_after_minutes", "stop_margin_s", "preempt_horizon_hours", "preempt_most"],
)
def test_settings_that_no_log_could_name_are_refused(setting: str) -> None:
    with pytest.raises(ValidationError, match=setting):
        SchedulerSettings.model_validate({setting: 1e300})


def test_the_widest_settings_can_be_written() -> None:
    widest = SchedulerSettings(stop_margin_s=1e9 - 60, preempt_horizon_hours=1e9 / 3600)
    configured(widest.policy(), widest.limits())
