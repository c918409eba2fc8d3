"""The audit log in the tracker's database: filters, pages, and what each team sees of it."""

from __future__ import annotations

from typing import Any

from gangline_gateway.audit_trail import AuditFilter, AuditTrail
from gangline_schemas.events.access import AUDIT_SUBJECT, ActionAudited
from support.harnesses.tracker_process import TrackerProcess
from support.waiting import wait_until

ADMIN = AuditFilter()


def record(user: str, action: str, team: str = "", **fields: Any) -> ActionAudited:
    given: dict[str, Any] = {
        "user": user, "role": "member", "via": "token", "action": action, "team": team,
        "target": "job-x", "outcome": "done", "status": 201, **fields,
    }  # fmt: skip
    return ActionAudited(**given)


def test_entries_are_found_by_user_team_action_and_page(tracker: TrackerProcess) -> None:
    refused = record("eve", "node.drain", outcome="refused", status=403)
    told = [
        record("ann", "job.submit", "audio"),
        record("eve", "job.cancel", "audio"),
        record("ann", "team.set", "speech"),
        record("root", "job.submit", "speech"),
        refused,
    ]
    for one in told:
        tracker.send(one, AUDIT_SUBJECT)
    trail = AuditTrail(tracker.client("service"))
    wait_until("the entries", lambda: len(trail.page(ADMIN).entries) == len(told))

    def found(wanted: AuditFilter) -> list[tuple[str, str]]:
        return [(one.user, one.action) for one in trail.page(wanted).entries]

    whole = [(one.user, one.action) for one in reversed(told)]
    assert found(ADMIN) == whole
    assert found(AuditFilter(user="ann")) == [("ann", "team.set"), ("ann", "job.submit")]
    assert found(AuditFilter(action="job")) == [
        ("root", "job.submit"), ("eve", "job.cancel"), ("ann", "job.submit"),
    ]  # fmt: skip
    assert found(AuditFilter(action="job.cancel")) == [("eve", "job.cancel")]
    assert found(AuditFilter(outcome="refused")) == [("eve", "node.drain")]
    assert found(AuditFilter(team="speech", action="team")) == [("ann", "team.set")]
    member = AuditFilter(teams=frozenset({"audio"}), own="eve")
    assert found(member) == [("eve", "node.drain"), ("eve", "job.cancel"), ("ann", "job.submit")]
    assert found(AuditFilter(teams=frozenset(), own="")) == []

    first = trail.page(ADMIN, limit=3)
    second = trail.page(ADMIN, limit=3, cursor=first.cursor)
    assert [(one.user, one.action) for one in first.entries + second.entries] == whole
    assert second.cursor is None
    newest = first.entries[0]
    assert (newest.outcome, newest.status, newest.target) == ("refused", 403, "job-x")
    assert found(AuditFilter(since=newest.time))[0] == ("eve", "node.drain")
    assert ("eve", "node.drain") not in found(AuditFilter(until=newest.time))
