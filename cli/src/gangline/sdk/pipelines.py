"""Pipelines and their runs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gangline.errors import CliError
from gangline.pipeline_file import PipelineFile, read_pipeline_file
from gangline.sdk.answers import path_id
from gangline.sdk.jobs import Jobs
from gangline_schemas.api.pipelines import (
    Announced,
    OutputFiles,
    Pipeline,
    PipelineDetails,
    PipelineList,
    PipelineRun,
    RunDetails,
    RunList,
    StepWhy,
)
from gangline_schemas.pipeline_file import PipelineSpec
from gangline_storage import digest_file

_POLL_S = 0.5
_ENDS = {"succeeded", "failed", "cancelled"}


class Pipelines(Jobs):
    """Pipelines and their runs."""

    def apply_pipeline(
        self,
        pipeline: Path | str | PipelineFile | PipelineSpec | Mapping[str, Any],
        *,
        dry_run: bool = False,
    ) -> PipelineDetails:
        """Create or replace a pipeline, from a file or its fields; workdirs are uploaded."""
        if isinstance(pipeline, (str, Path)):
            pipeline = read_pipeline_file(Path(pipeline))
        if isinstance(pipeline, PipelineFile):
            for bundle in () if dry_run else pipeline.bundles:
                self.upload(bundle, pipeline.spec.team)
            pipeline = pipeline.spec
        spec = PipelineSpec.model_validate(pipeline)
        body = spec.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
        return self._read(
            PipelineDetails,
            "PUT",
            f"/v1/pipelines/{path_id(spec.name)}",
            body=body,
            params={"dry_run": "true" if dry_run else None},
            repeatable=True,
        )

    def pipelines(self) -> Sequence[Pipeline]:
        """Pipelines of the caller's teams."""
        return self._read(PipelineList, "GET", "/v1/pipelines").pipelines

    def pipeline(self, name: str, *, team: str | None = None) -> PipelineDetails:
        """A pipeline with its file."""
        place = f"/v1/pipelines/{path_id(name)}"
        return self._read(PipelineDetails, "GET", place, params={"team": team})

    def remove_pipeline(self, name: str, *, team: str | None = None) -> PipelineDetails:
        """Remove a pipeline; its runs continue."""
        place = f"/v1/pipelines/{path_id(name)}"
        return self._read(PipelineDetails, "DELETE", place, params={"team": team})

    def pause_pipeline(
        self, name: str, *, paused: bool = True, team: str | None = None
    ) -> PipelineDetails:
        """Let triggers start no runs, or let them again."""
        place = f"/v1/pipelines/{path_id(name)}/pause"
        params = {"team": team}
        return self._read(PipelineDetails, "POST", place, body={"paused": paused}, params=params)

    def run_pipeline(
        self,
        name: str,
        params: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        *,
        team: str | None = None,
    ) -> PipelineRun:
        """Run a pipeline now, or after the run that has not ended.

        The same key again gives the same run. Without one, each call is a new run.
        """
        return self._read(
            PipelineRun,
            "POST",
            f"/v1/pipelines/{path_id(name)}/runs",
            body={"params": dict(params or {})},
            params={"team": team},
            headers={"Idempotency-Key": idempotency_key or uuid.uuid4().hex},
            repeatable=True,
        )

    def pipeline_runs(
        self, name: str | None = None, *, team: str | None = None, limit: int = 50
    ) -> Sequence[PipelineRun]:
        """Runs of a pipeline, or of all; the newest first."""
        params = {"team": team if name else None, "limit": limit}
        place = f"/v1/pipelines/{path_id(name)}/runs" if name else "/v1/pipeline-runs"
        return self._read(RunList, "GET", place, params=params).runs

    def pipeline_run(self, run_id: str) -> RunDetails:
        """A run with its steps."""
        return self._read(RunDetails, "GET", f"/v1/pipeline-runs/{path_id(run_id)}")

    def why_step(self, run_id: str, step: str) -> StepWhy:
        """Why a step ran, or was taken from the cache."""
        place = f"/v1/pipeline-runs/{path_id(run_id)}/steps/{path_id(step)}"
        return self._read(StepWhy, "GET", place)

    def output_files(self, run_id: str, step: str, output: str) -> OutputFiles:
        """The files of a step's output."""
        return self._read(OutputFiles, "GET", _output(run_id, step, output))

    def download_output(self, run_id: str, step: str, output: str, folder: Path) -> Sequence[Path]:
        """Write a step's output below `folder`, each file verified. Raises CliError."""
        place, written = _output(run_id, step, output), []
        for file in self.output_files(run_id, step, output).files:
            path = folder / file.path
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._transport.download(f"{place}/content", {"path": file.path}, path)
                same = path.stat().st_size == file.size_bytes and digest_file(path) == file.xxh3
            except OSError as error:
                raise CliError(f"{path}: {error.strerror}") from None
            if not same:
                path.unlink()
                raise CliError(
                    f"{file.path} of {step}.{output} is damaged in the store",
                    "run the step again: its outputs replace what is damaged",
                )
            written.append(path)
        return written

    def cancel_pipeline_run(self, run_id: str) -> RunDetails:
        """End a run, or let one that is queued never begin."""
        return self._read(RunDetails, "POST", f"/v1/pipeline-runs/{path_id(run_id)}/cancel")

    def retry_pipeline_run(self, run_id: str) -> RunDetails:
        """Continue a run from its failed steps."""
        return self._read(RunDetails, "POST", f"/v1/pipeline-runs/{path_id(run_id)}/retry")

    def wait_pipeline_run(
        self,
        run_id: str,
        timeout_s: float | None = None,
        on_change: Callable[[RunDetails], None] = lambda _: None,
    ) -> RunDetails:
        """A run once it has ended, or as it is after `timeout_s`. Raises CliError."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        before: Mapping[str, int] = {}
        while True:
            run = self.pipeline_run(run_id)
            if run.steps != before:
                before = run.steps
                on_change(run)
            if run.state in _ENDS or (until is not None and time.monotonic() >= until):
                return run
            time.sleep(_POLL_S)

    def announce_snapshot(
        self, snapshot: str, team: str, place: str = "", sources: Sequence[str] = ()
    ) -> Announced:
        """Say that a team has a new snapshot: pipelines that wait for it run."""
        body = {"snapshot": snapshot, "team": team, "place": place, "sources": [*sources]}
        return self._read(Announced, "POST", "/v1/data/snapshots", body=body, repeatable=True)


def _output(run_id: str, step: str, output: str) -> str:
    return f"/v1/pipeline-runs/{path_id(run_id)}/steps/{path_id(step)}/outputs/{path_id(output)}"
