"""The cluster: teams, uses of data, nodes, the queue, events, reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

from gangline.sdk.answers import parse, path_id, topic_name
from gangline.sdk.calls import Calls
from gangline.transport import HTML
from gangline_schemas.api.alerts import Alert
from gangline_schemas.api.cluster import (
    Drained,
    GpuMap,
    MapNode,
    Node,
    NodeList,
    Queue,
    Team,
    TeamList,
    Version,
    Whoami,
)
from gangline_schemas.api.data import Approval, ApprovalList, DataUseStatus
from gangline_schemas.api.history import HistoryRange, PlatformAt
from gangline_schemas.api.jobs import JobSummary
from gangline_schemas.api.joining import JoinedNode, ListedNodeToken, NodeToken, NodeTokenList
from gangline_schemas.api.logs import BusEvent, EventPage
from gangline_schemas.api.questions import QueueOutlook
from gangline_schemas.api.reports import UtilizationReport, WeeklyReport
from gangline_schemas.team_limits import GpuTypeLimit

Row = JobSummary | MapNode | Alert
_ROWS: dict[str, type[Row]] = {"job": JobSummary, "node": MapNode, "alert": Alert}


@dataclass(frozen=True, slots=True)
class Change:
    """One change. `row` is None for `queue` and `snapshot`."""

    kind: str
    row: Row | None


class Cluster(Calls):
    """The cluster: teams, uses of data, nodes, the queue, events, reports."""

    def teams(self) -> Sequence[Team]:
        """Teams that the token sees."""
        return self._read(TeamList, "GET", "/v1/teams").teams

    def configure_team(
        self,
        team: str,
        *,
        gpu_limit: int,
        gpu_guarantee: int = 0,
        borrow_limit: int = 0,
        parent: str | None = None,
        weight: float = 1.0,
        surplus: str | None = None,
        gpu_types: Sequence[GpuTypeLimit] = (),
        gpu_hours_per_month: float | None = None,
        cpu_limit: float | None = None,
        cpu_hours_per_month: float | None = None,
        job_limit: int = 10_000,
    ) -> Team:
        """Create a team, or change all its limits: what is not given is set to its default."""
        body = {
            "gpu_limit": gpu_limit,
            "gpu_guarantee": gpu_guarantee,
            "borrow_limit": borrow_limit,
            "parent": parent,
            "weight": weight,
            "surplus": surplus,
            "gpu_types": [item.model_dump() for item in gpu_types],
            "gpu_hours_per_month": gpu_hours_per_month,
            "cpu_limit": cpu_limit,
            "cpu_hours_per_month": cpu_hours_per_month,
            "job_limit": job_limit,
        }
        return self._read(Team, "PUT", f"/v1/teams/{path_id(team)}", body=body)

    def approve_data(
        self, snapshot: str, project: str, purpose: str, *, approve: bool = True
    ) -> DataUseStatus:
        """Approve a snapshot for a project and a purpose, or withdraw that; needs an admin."""
        body = {"snapshot": snapshot, "project": project, "purpose": purpose, "approve": approve}
        return self._read(DataUseStatus, "POST", "/v1/data-approvals", body=body, repeatable=True)

    def data_approvals(self, snapshot: str | None = None) -> Sequence[Approval]:
        """Approved uses of data, of one snapshot or of all; needs an admin."""
        return self._read(
            ApprovalList, "GET", "/v1/data-approvals", params={"snapshot": snapshot}
        ).approvals

    def nodes(self) -> Sequence[Node]:
        """All nodes, by id, read page by page."""
        return self._whole(NodeList, "/v1/nodes", "nodes").nodes

    def gpus(self) -> GpuMap:
        """Every GPU with its gang, and the largest gangs that fit now."""
        return self._read(GpuMap, "GET", "/v1/gpus")

    def changes(self, kinds: Sequence[str] = ()) -> Iterator[Change]:
        """Changes of these kinds (job, node, alert, queue; default: all), for ever.

        After a `snapshot` read the lists again: changes until then are not given.
        """
        params = {"follow": "true", "kind": list(kinds) or None}
        for event in self._transport.events("/v1/changes", params):
            model = _ROWS.get(event.event)
            yield Change(event.event, None if model is None else parse(model, event.data))

    def node(self, node_id: str) -> Node:
        """One node."""
        return self._read(Node, "GET", f"/v1/nodes/{path_id(node_id)}")

    def history_range(self) -> HistoryRange:
        """The times that `history_at` accepts."""
        return self._read(HistoryRange, "GET", "/v1/history/range")

    def history_at(self, time: datetime, *, steps: bool = False) -> PlatformAt:
        """Jobs, queue and GPUs at a past time, which has a zone.

        `steps`: with the newest step of the first 300 jobs with GPUs.
        Raises CliError while a long log is being read; ask again, and it continues.
        """
        params = {"time": time.isoformat(), "steps": steps}
        return self._read(PlatformAt, "GET", "/v1/history/at", params=params)

    def drain(
        self, node_id: str, *, drain: bool = True, move_jobs: bool = True, reason: str = ""
    ) -> Drained:
        """Keep gangs off a node, or let them start there again.

        Gangs there save and resume on other nodes; without `move_jobs` they keep running.
        """
        path = f"/v1/nodes/{path_id(node_id)}/drain"
        body: dict[str, object] = {"drain": drain}
        if not move_jobs:
            body["move_jobs"] = False
        if reason:
            body["reason"] = reason
        return self._read(Drained, "POST", path, body=body, repeatable=True)

    def node_token(self, *, nodes: int = 1, expires_s: int = 3600) -> NodeToken:
        """A token by which so many machines join as nodes. Only admins can make one."""
        body = {"nodes": nodes, "expires_s": expires_s}
        return self._read(NodeToken, "POST", "/v1/node-tokens", body=body)

    def node_tokens(self) -> Sequence[ListedNodeToken]:
        """The tokens by which machines may still join, the first to expire first."""
        return self._read(NodeTokenList, "GET", "/v1/node-tokens").tokens

    def revoke_node_token(self, token_id: str) -> None:
        """Let no further machine join with a token; those that have joined stay."""
        self._transport.call("DELETE", f"/v1/node-tokens/{path_id(token_id)}", repeatable=True)

    def join_node(self, node_id: str) -> JoinedNode:
        """The settings of a new node; the client's token is one of `node_token`."""
        return self._read(JoinedNode, "POST", "/v1/nodes/join", body={"node_id": node_id})

    def queue(self) -> Queue:
        """Pending jobs in the order in which they start."""
        return self._whole(Queue, "/v1/queue", "queue")

    def queue_outlook(self) -> QueueOutlook:
        """Expected starts of the first pending jobs, and the GPUs that are reserved."""
        return self._read(QueueOutlook, "GET", "/v1/queue/outlook")

    def events(
        self,
        topics: Sequence[str] = (),
        *,
        follow: bool = False,
        from_start: bool = False,
        limit: int = 100,
    ) -> Iterator[BusEvent]:
        """The newest `limit` events of topics (none named: all but heartbeats); needs an admin.

        `follow` gives those that come instead, for ever; with `from_start` after all old ones.
        """
        params: dict[str, Any] = {"topic": [topic_name(name) for name in topics] or None}
        if follow:
            params |= {"follow": "true", "from": "start" if from_start else "end"}
            for event in self._transport.events("/v1/events", params):
                yield parse(BusEvent, event.data)
            return
        params["limit"] = limit
        yield from self._read(EventPage, "GET", "/v1/events", params=params).events

    def report_utilization(
        self, since: datetime | None = None, until: datetime | None = None
    ) -> UtilizationReport:
        """Each team's use of the GPUs and its waits; by default of the last 24 hours."""
        return self._read(
            UtilizationReport, "GET", "/v1/reports/utilization", params=_span(since, until)
        )

    def report_weekly(self, week: str | None = None) -> WeeklyReport:
        """How a week (2026-W47; else the last 7 days) went, and the one before."""
        return self._read(WeeklyReport, "GET", "/v1/reports/weekly", params={"week": week})

    def report_page(
        self,
        name: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        week: str | None = None,
    ) -> str:
        """The same reports, by name (utilization, weekly), as a page of HTML."""
        params = {**_span(since, until), "week": week}
        path = f"/v1/reports/{path_id(name)}"
        page: str = self._transport.call("GET", path, params=params, headers={"Accept": HTML})
        return page

    def sign_in_url(self, page: str = "/console/") -> str:
        """An address that signs a browser in as this token's user, once, within a minute."""
        made = self._transport.call("POST", "/session/codes")
        return f"{self.url}/session?next={quote(page, safe='')}#{made['code']}"

    def whoami(self) -> Whoami:
        """Whose token this is."""
        return self._read(Whoami, "GET", "/v1/whoami")

    def version(self) -> Version:
        """The versions of the gateway and of its API."""
        return self._read(Version, "GET", "/v1/version")


def _span(since: datetime | None, until: datetime | None) -> dict[str, str | None]:
    return {
        "from": since.isoformat() if since else None,
        "to": until.isoformat() if until else None,
    }
