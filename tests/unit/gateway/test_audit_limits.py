"""How many records of the audit log others can cause."""

from __future__ import annotations

from typing import Any

import pytest

from gangline_bus.topics import TopicNames
from gangline_gateway.audit import REFUSALS, AuditLog, Note
from gangline_gateway.sign_in import BEGIN
from gangline_service.tokens import Principal, Role

ADA = Principal(name="ada", role=Role.MEMBER, teams=frozenset({"nlp"}))


class Sent:
    """Stands for the bus."""

    def __init__(self) -> None:
        self.records: list[object] = []

    def send(self, record: object, _: object) -> None:
        self.records.append(record)


@pytest.mark.parametrize(
    ("principal", "status", "limited"),
    [(None, 401, True), (None, 410, True), (None, 429, True), (ADA, 403, True), (ADA, 503, False)],
)
def test_nobody_fills_the_log_and_each_failed_change_of_a_user_is_in_it(
    principal: Principal | None, status: int, limited: bool
) -> None:
    sent: Any = Sent()
    audit = AuditLog(sent, TopicNames())
    scope = {"method": "POST", "path": "/session/device/token", "state": {"principal": principal}}
    for _ in range(3 * REFUSALS.burst):
        audit.record(scope, Note(action=BEGIN), status, "", "4bf9")
    assert (len(sent.records) < 2 * REFUSALS.burst) is limited
    assert len(sent.records) >= REFUSALS.burst
