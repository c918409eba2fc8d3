"""Studies: searches for the best parameters, and their trials."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gangline.sdk.answers import path_id
from gangline.sdk.jobs import Jobs
from gangline.sdk.waiting import until_ended
from gangline.study_file import StudyFile, check_study, read_study_file
from gangline_schemas.api.runs import Parallel
from gangline_schemas.api.studies import (
    BestSoFar,
    ParetoFront,
    Study,
    StudyCurves,
    StudyDetail,
    StudyImportance,
    StudyPage,
    StudyPlan,
    Trial,
    TrialDetail,
    TrialPage,
)
from gangline_schemas.study_file import StudySpec

StudySubmission = StudyFile | StudySpec | Mapping[str, Any] | Path | str


class Studies(Jobs):
    """Searches for the best parameters, and their trials."""

    def submit_study(
        self, study: StudySubmission, idempotency_key: str | None = None
    ) -> StudyDetail:
        """Submit a spec, a mapping of its fields or a study file; uploads the job's workdir first.

        The same key again gives the same study. Without one, each call is a new study.
        """
        file = read_study(study)
        if file.bundle is not None:
            self.upload(file.bundle, file.spec.team)
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        body = file.spec.data()
        return self._read(
            StudyDetail, "POST", "/v1/studies", body=body, headers=headers, repeatable=True
        )

    def plan_study(self, study: StudySubmission) -> StudyPlan:
        """Check a study as `submit_study` does; nothing is uploaded or started."""
        return self._read(
            StudyPlan,
            "POST",
            "/v1/studies",
            params={"dry_run": "true"},
            body=read_study(study).spec.data(),
            repeatable=True,
        )

    def studies(
        self,
        *,
        states: Sequence[str] = (),
        team: str | None = None,
        name: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Study]:
        """Studies, the newest first, read page by page; at most `limit`."""
        wanted = {"state": [*states] or None, "team": team, "name": name}
        return self._items(StudyPage, "/v1/studies", "studies", limit, **wanted)

    def study(self, study_id: str) -> StudyDetail:
        """One study."""
        return self._read(StudyDetail, "GET", f"/v1/studies/{path_id(study_id)}")

    def stop_study(self, study_id: str) -> StudyDetail:
        """End a study: no trial starts any more, and those that run are cancelled."""
        path = f"/v1/studies/{path_id(study_id)}/stop"
        return self._read(StudyDetail, "POST", path, repeatable=True)

    def trials(
        self,
        study_id: str,
        *,
        states: Sequence[str] = (),
        order_by: str = "number",
        limit: int | None = None,
    ) -> Iterator[Trial]:
        """Trials of a study, by number, newest, value (the best first) or gpu_hours."""
        wanted = {"state": [*states] or None, "order_by": order_by}
        path = f"/v1/studies/{path_id(study_id)}/trials"
        return self._items(TrialPage, path, "trials", limit, **wanted)

    def trial(self, study_id: str, number: int) -> TrialDetail:
        """One trial with its curve."""
        path = f"/v1/studies/{path_id(study_id)}/trials/{int(number)}"
        return self._read(TrialDetail, "GET", path)

    def study_curves(self, study_id: str, *, limit: int = 100) -> StudyCurves:
        """The curves of live trials, then of the best; and the steps of rungs."""
        path = f"/v1/studies/{path_id(study_id)}/curves"
        return self._read(StudyCurves, "GET", path, params={"limit": limit})

    def study_parallel(self, study_id: str, *, limit: int = 1000) -> Parallel:
        """The best trials on parallel axes: parameters, GPU-hours, objectives."""
        path = f"/v1/studies/{path_id(study_id)}/parallel"
        return self._read(Parallel, "GET", path, params={"limit": limit})

    def study_importance(self, study_id: str, *, metric: str | None = None) -> StudyImportance:
        """How much each parameter matters for an objective, by default the first."""
        path = f"/v1/studies/{path_id(study_id)}/importance"
        return self._read(StudyImportance, "GET", path, params={"metric": metric})

    def best_so_far(self, study_id: str) -> BestSoFar:
        """How the best value improved over the GPU-hours that the study used."""
        return self._read(BestSoFar, "GET", f"/v1/studies/{path_id(study_id)}/best-so-far")

    def pareto_front(self, study_id: str) -> ParetoFront:
        """The completed trials that no other beats in all objectives."""
        return self._read(ParetoFront, "GET", f"/v1/studies/{path_id(study_id)}/pareto")

    def wait_for_study(
        self,
        study_id: str,
        timeout_s: float | None = None,
        *,
        on_change: Callable[[StudyDetail], None] = lambda _: None,
    ) -> StudyDetail:
        """Wait for a study's end. Raises CliError with code NOT_FINISHED after `timeout_s`."""
        return until_ended(
            study_id,
            lambda: self.study(study_id),
            timeout_s,
            on_change,
            shown=lambda found: (found.state, found.trials, found.best),
            again=f"look at it: gangline study show {study_id}",
        )


def read_study(study: StudySubmission) -> StudyFile:
    """Any form of a submission as a checked spec and its bundle. Raises CliError."""
    if isinstance(study, StudyFile):
        return study
    if isinstance(study, StudySpec):
        return StudyFile(study, None)
    if isinstance(study, (str, Path)):
        return read_study_file(Path(study))
    return StudyFile(check_study(study, "the spec"), None)
