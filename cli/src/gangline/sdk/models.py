"""Registered models: gates, versions with evidence, protected aliases, drift."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from gangline.sdk.answers import path_id
from gangline.sdk.calls import AnswerT, Calls
from gangline_schemas.api.models import (
    Check,
    Drift,
    Lineage,
    ModelDetail,
    ModelList,
    ModelRow,
    Move,
    MoveList,
    ProfileList,
    ProfileRow,
    Promotion,
    VersionRow,
)
from gangline_schemas.gate_file import Gate
from gangline_schemas.models import ServingReport

_POLL_S = 0.5


class Models(Calls):
    """Registered models. `team` is needed if the token sees the name in several teams."""

    def models(self, *, team: str | None = None) -> Sequence[ModelRow]:
        """Models with a gate or a version, by team and name."""
        return self._read(ModelList, "GET", "/v1/models", params={"team": team}).models

    def model(self, name: str, *, team: str | None = None) -> ModelDetail:
        """A model with its versions, evidence, promotions and moves."""
        return self._read(ModelDetail, "GET", _path(name), params={"team": team})

    def set_gate(self, gate: Gate) -> ModelDetail:
        """Protect aliases of a model by this gate, or replace its gate."""
        body = gate.model_dump(mode="json")
        return self._read(ModelDetail, "PUT", f"{_path(gate.model)}/gate", body=body)

    def remove_gate(self, name: str, *, team: str | None = None) -> None:
        """Protect a model's aliases no longer."""
        self._transport.call("DELETE", f"{_path(name)}/gate", params={"team": team})

    def register(
        self,
        name: str,
        *,
        job: str | None = None,
        step: int | None = None,
        version: int | None = None,
        snapshot: str | None = None,
        description: str = "",
        team: str | None = None,
    ) -> VersionRow:
        """Register a promoted checkpoint of a job, or take over a version that MLflow has."""
        given = {"job_id": job, "step": step, "version": version, "snapshot": snapshot}
        body = {key: value for key, value in given.items() if value is not None}
        body_sent = {**body, "description": description}
        return self._post(VersionRow, f"{_path(name)}/versions", team, body_sent)

    def report_scores(
        self,
        name: str,
        version: int,
        suite: str,
        scores: Mapping[str, float],
        *,
        job: str | None = None,
        details: Mapping[str, str] | None = None,
        team: str | None = None,
    ) -> VersionRow:
        """Report the scores of a version's items in a suite. Higher is better."""
        body: dict[str, Any] = {"suite": suite, "scores": dict(scores)}
        body |= {"job_id": job} if job is not None else {}
        body |= {"details": dict(details)} if details else {}
        return self._post(VersionRow, f"{_path(name)}/versions/{version}/evaluations", team, body)

    def report_serving(
        self, name: str, version: int, report: ServingReport, *, team: str | None = None
    ) -> VersionRow:
        """Report what a version needs when it serves."""
        body = report.model_dump(mode="json")
        return self._post(VersionRow, f"{_path(name)}/versions/{version}/serving", team, body)

    def approve_version(
        self, name: str, version: int, *, comment: str = "", team: str | None = None
    ) -> VersionRow:
        """Approve a version in the name of the token."""
        body = {"comment": comment}
        return self._post(VersionRow, f"{_path(name)}/versions/{version}/approvals", team, body)

    def check_version(
        self, name: str, version: int, *, alias: str | None = None, team: str | None = None
    ) -> Check:
        """Ask the gate about a version now. Nothing moves."""
        params = {"alias": alias, "team": team}
        return self._read(Check, "GET", f"{_path(name)}/versions/{version}/check", params=params)

    def promote_version(
        self,
        name: str,
        version: int,
        *,
        alias: str,
        expected: int | None = None,
        override: Mapping[str, str] | None = None,
        wait_s: float = 120.0,
        team: str | None = None,
    ) -> Promotion:
        """Move an alias to a version, if its gate passes it; waits for comparisons of scores.

        `override` has a `person` and a `reason`. `verdict` is None if it is not judged in time.
        """
        body: dict[str, Any] = {"version": version}
        body |= {"expected": expected} if expected is not None else {}
        body |= {"override": dict(override)} if override else {}
        path = f"{_path(name)}/aliases/{path_id(alias)}/promotions"
        found = self._post(Promotion, path, team, body)
        deadline = time.monotonic() + wait_s
        while found.verdict is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            path = f"{_path(name)}/promotions/{found.promotion}"
            found = self._read(Promotion, "GET", path, params={"team": team})
        return found

    def roll_back(
        self,
        name: str,
        *,
        alias: str,
        to: int | None = None,
        expected: int | None = None,
        reason: str = "",
        team: str | None = None,
    ) -> Move:
        """Move an alias back to the version before, or to an earlier one."""
        given = {"to": to, "expected": expected}
        body = {key: value for key, value in given.items() if value is not None}
        path = f"{_path(name)}/aliases/{path_id(alias)}/rollbacks"
        return self._post(Move, path, team, {**body, "reason": reason})

    def moves(
        self, name: str, alias: str, *, limit: int = 100, team: str | None = None
    ) -> Sequence[Move]:
        """The moves of an alias, the newest first."""
        params = {"limit": limit, "team": team}
        path = f"{_path(name)}/aliases/{path_id(alias)}/history"
        return self._read(MoveList, "GET", path, params=params).moves

    def drift(self, name: str, alias: str, *, team: str | None = None) -> Drift:
        """The data of an alias's version: their age, and drift of later snapshots."""
        path = f"{_path(name)}/aliases/{path_id(alias)}/drift"
        return self._read(Drift, "GET", path, params={"team": team})

    def lineage(self, name: str, alias: str, *, team: str | None = None) -> Lineage:
        """Where an alias's version comes from."""
        path = f"{_path(name)}/aliases/{path_id(alias)}/lineage"
        return self._read(Lineage, "GET", path, params={"team": team})

    def send_profile(
        self,
        team: str,
        snapshot: str,
        profile: Mapping[str, Any],
        made_at: datetime,
        *,
        serving: bool = False,
    ) -> ProfileRow:
        """Send the profile of a snapshot of data, as `gangline data profile` makes it."""
        body = {
            "snapshot": snapshot,
            "profile": dict(profile),
            "made_at": made_at.isoformat(),
            "serving": serving,
        }
        return self._post(ProfileRow, "/v1/profiles", team, body)

    def profiles(self, *, team: str | None = None) -> Sequence[ProfileRow]:
        """Snapshots that have profiles, the newest first."""
        return self._read(ProfileList, "GET", "/v1/profiles", params={"team": team}).profiles

    def _post(
        self, kind: type[AnswerT], path: str, team: str | None, body: dict[str, Any]
    ) -> AnswerT:
        return self._read(kind, "POST", path, params={"team": team}, body=body)


def _path(name: str) -> str:
    return f"/v1/models/{path_id(name)}"
