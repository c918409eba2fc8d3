"""The policies that a recording is run through: the settings of the live scheduler by name.

A name is an order, and maybe settings behind it: `fair`, `fifo+reservation=off`,
`short+reservation=conservative+preempt=off`. Other settings have the platform's defaults. Each
policy knows the same as the live scheduler: of runtimes, users' estimates and past jobs' times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gangline_scheduler.core.policy.config import ORDERS, Policy, Preemption, order_named

RECORDED = "recorded"
"""The recorded events; no policy, and always in the first column."""
SETTINGS: Mapping[str, Sequence[str]] = {
    "reservation": ("off", "easy", "conservative"),
    "preempt": ("on", "off"),
    "reclaim": ("on", "off"),
    "defragment": ("on", "off"),
    "preempt_below": ("20", "101"),
}


def live_policy(name: str) -> Policy:
    """The policy of a name. Raises ValueError that lists what there is."""
    order, *settings = name.split("+")
    if order not in ORDERS:
        raise ValueError(f"policy {order!r} is not known; there are {known()}")
    chosen: dict[str, Any] = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        if value not in SETTINGS.get(key, ()):
            raise ValueError(f"policy {name!r}: {setting!r} is no setting; there are {known()}")
        chosen[key] = value
    mode = chosen.pop("reservation", Policy().reservation)
    if "preempt_below" in chosen:
        chosen["preempt_below"] = int(chosen["preempt_below"])
    preemption = replace(Preemption(), **chosen)
    return Policy(
        order=order_named(order), reservation=mode, preemption=preemption, give_reasons=False
    )


def known() -> str:
    """The allowed names, in one sentence."""
    settings = ", ".join(f"+{key}={'|'.join(values)}" for key, values in SETTINGS.items())
    return f"the orders {', '.join(ORDERS)}, and behind them {settings}"
