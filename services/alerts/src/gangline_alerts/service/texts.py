"""Notifications as people read them: a title and lines of plain text."""

from __future__ import annotations

from gangline_schemas.alerts import AlertText
from gangline_schemas.events.alerts import NotificationDue


def title(due: NotificationDue) -> str:
    """One line without control characters: it may become the subject of a mail."""
    if due.job is not None:
        return f"[Gangline] job {due.job.name} of team {due.job.team} is {due.job.state.value}"
    where = f" of team {due.team}" if due.team else ""
    rule = due.rule.value if due.rule is not None else "alerts"
    parts = []
    if due.raised:
        parts.append(f"{len(due.raised)} raised")
    if due.resolved:
        parts.append(f"{len(due.resolved)} resolved")
    return f"[Gangline] {rule}{where}: {', '.join(parts) or 'more alerts'}"


def lines(due: NotificationDue) -> list[str]:
    """The facts, a line each."""
    if due.job is not None:
        job = due.job
        reason = f": {job.reason}" if job.reason else ""
        return [f"job {job.job_id} went from {job.previous.value} to {job.state.value}{reason}"]
    found = [f"raised {_of(text)}" for text in due.raised]
    found += [f"resolved {_of(text)}" for text in due.resolved]
    if due.more:
        found.append(f"and {due.more} more: `gangline alerts` lists all")
    return found


def _of(text: AlertText) -> str:
    return f"#{text.number} ({text.severity.value}): {text.message}"
