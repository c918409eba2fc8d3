"""A tick runs the actions that the policy names, in its order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pydantic import ValidationError

from gangline_scheduler.core import actions
from gangline_scheduler.core.plan import Plan
from gangline_scheduler.core.policy.config import Policy, actions_named
from gangline_scheduler.core.policy.configured import Limits
from gangline_scheduler.core.state import State
from gangline_scheduler.service.config import SchedulerSettings
from gangline_schemas.base import Event
from gangline_schemas.events.policy import ACTIONS
from gangline_schemas.events.scheduling import GangAllocated, GangReleased, JobWaiting
from support.builders.deciding import every
from support.builders.scheduler import Cluster, node

KNOWN = "expire, drain, allocate, resize, make_room, backfill, grow, explain"


def test_a_tick_runs_the_named_actions_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def note(name: str) -> Callable[[Plan, actions.TickRun], None]:
        return lambda _plan, _tick: ran.append(name)

    for name in ACTIONS:
        monkeypatch.setitem(actions.BY_NAME, name, note(name))
    cluster = Cluster(node())
    plan = Plan(State(), cluster.now)
    actions.run(plan, Policy(), Limits())
    assert ran == list(ACTIONS) == list(actions.BY_NAME)
    ran.clear()
    actions.run(plan, Policy(actions=("grow", "allocate")), Limits())
    assert ran == ["grow", "allocate"]


def without(name: str) -> Policy:
    return Policy(actions=tuple(each for each in ACTIONS if each != name))


def past_the_end(policy: Policy) -> list[Event]:
    """The log of a node's gang that reaches its maximum runtime while a job waits for its GPU."""
    cluster = Cluster(node(gpus=1), policy=policy)
    cluster.submit("first", max_runtime_hours=1)
    cluster.submit("second")
    cluster.tick(3700)
    cluster.tick(3600)
    return [decision.event for decision, _ in cluster.log]


@pytest.mark.parametrize(
    ("policy", "allocated", "released"),
    [
        (Policy(), ["first", "second"], ["first"]),
        (without("expire"), ["first"], []),
        (without("allocate"), ["first"], ["first"]),
    ],
    ids=["all", "without expire", "without allocate"],
)
def test_an_action_that_is_left_out_is_off(
    policy: Policy, allocated: list[str], released: list[str]
) -> None:
    log = past_the_end(policy)
    assert [event.job_id for event in every(log, GangAllocated)] == allocated
    assert [event.job_id for event in every(log, GangReleased)] == released


def test_without_explain_a_tick_gives_no_reasons() -> None:
    for policy, told in ((Policy(), True), (without("explain"), False)):
        cluster = Cluster(node(gpus=1), policy=policy)
        cluster.submit("first")
        cluster.submit("second")
        cluster.leave("n1")
        assert bool(every(cluster.tick(60), JobWaiting)) is told


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("allocate", "preempt"), f"actions: 'preempt' is not one of {KNOWN}"),
        (("allocate", "grow", "allocate"), f"actions: 'allocate' is there twice.*{KNOWN}"),
    ],
)
def test_unknown_and_doubled_names_are_refused(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        actions_named(names)
    with pytest.raises(ValidationError, match=message):
        SchedulerSettings.model_validate({"actions": names})


def test_the_settings_name_the_actions() -> None:
    assert SchedulerSettings().policy().actions == ACTIONS
    settings = SchedulerSettings.model_validate({"actions": ["explain", "allocate"]})
    assert settings.policy().actions == ("explain", "allocate")
