"""Histories while ClickHouse is away; its answers are in tests/integration."""

from __future__ import annotations

import pytest

from gangline.local.ports import pick_ports
from gangline_mlflow.history import Histories, Unreadable


def test_without_clickhouse_histories_are_unreadable() -> None:
    histories = Histories(f"http://127.0.0.1:{pick_ports(1)[0]}", "default", "secret")
    for _ in range(6):  # more than it has clients
        with pytest.raises(Unreadable):
            histories.of_run("r1", "loss")
