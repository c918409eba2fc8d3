"""The order of a table, which is in the address: clicks on a column's head go through its ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Ways = Mapping[str, Literal["ascending", "descending"]]
"""Orders that the clicks on one head ask for, in turn, by their text in the address."""


def next_order(ways: Ways, current: str) -> str:
    """The order after a click: the first way, then the next one; after the last, the usual one."""
    orders = [*ways]
    return orders[0] if current not in ways else [*orders[1:], ""][orders.index(current)]
