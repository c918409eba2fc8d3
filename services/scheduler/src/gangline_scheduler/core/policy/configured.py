"""A policy as the log has it (`policy.configured`), and back.

The names are those of `Policy`, `Preemption` and `Limits`; a time has `_s` behind its name and
counts seconds. The placer is not in it: a scheduler that writes a log has one only.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from gangline_scheduler.core.policy.config import Policy, Preemption, actions_named, order_named
from gangline_scheduler.core.state import State
from gangline_schemas.base import Model
from gangline_schemas.events.policy import PolicyConfigured, PreemptionSettings


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that the scheduler keeps, besides its policy.

    `stop_margin`: how long after its deadline a stopping gang is still waited for, as its agents
    need a moment to report. `save_wait`: how long a gang that failed waits at most for a checkpoint
    that its nodes have to reach the store; never for longer than redoing the work would take.
    `oldest_agents`: the oldest release of node agents that is accepted; None: any.
    """

    stop_margin: timedelta = timedelta(seconds=15)
    save_wait: timedelta = timedelta(minutes=10)
    oldest_agents: str | None = None


_LIMITS = frozenset({"stop_margin_s", "save_wait_s", "oldest_agents"})
_OTHERS = {"order", "preemption"}


def configured(policy: Policy, limits: Limits) -> PolicyConfigured:
    """The event that names them. Raises ValidationError for a number beyond its bounds."""
    names = PolicyConfigured.model_fields.keys() - _LIMITS - _OTHERS
    preemption = _plain(policy.preemption, PreemptionSettings.model_fields.keys())
    return PolicyConfigured.model_validate(
        {
            "order": policy.order.name,
            "preemption": PreemptionSettings.model_validate(preemption),
            **_plain(policy, names),
            **_plain(limits, _LIMITS),
        }
    )


def policy_of(event: PolicyConfigured) -> Policy:
    """The policy that it names. Raises ValueError for an order or action of a later version."""
    values = _values(event, event.__class__.model_fields.keys() - _LIMITS - _OTHERS)
    preemption = Preemption(**_values(event.preemption, PreemptionSettings.model_fields.keys()))
    values["actions"] = actions_named(values["actions"])
    return Policy(order=order_named(event.order), preemption=preemption, **values)


def policy_in(state: State) -> Policy:
    """The policy that a log's state names, or the default before it names any.

    Raises ValueError for an order or action of a later version.
    """
    return Policy() if state.policy is None else policy_of(state.policy)


def limits_of(event: PolicyConfigured) -> Limits:
    """The limits that it names."""
    return Limits(**_values(event, _LIMITS))


def limits_in(state: State) -> Limits:
    """The limits that a log's state names, or the default before it names any."""
    return Limits() if state.policy is None else limits_of(state.policy)


def _plain(value: object, names: Any) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in names:
        setting = getattr(value, name.removesuffix("_s"))
        found[name] = setting.total_seconds() if isinstance(setting, timedelta) else setting
    return found


def _values(event: Model, names: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        value = getattr(event, name)
        is_time = name.endswith("_s") and value is not None
        found[name.removesuffix("_s")] = timedelta(seconds=value) if is_time else value
    return found
