"""Runs of history: metrics, curves, comparisons, failures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Literal, TypedDict, Unpack, cast

from gangline.errors import CliError, ExitCode
from gangline.sdk.answers import parse, path_id, steps_of
from gangline.sdk.calls import Calls
from gangline.sdk.mlflow import Mlflow
from gangline.tracking.server import Refused, team_of
from gangline.transport import Params
from gangline_schemas.api.cluster import Whoami
from gangline_schemas.api.incidents import IncidentDetail, IncidentPage
from gangline_schemas.api.runs import (
    Axis,
    Comparison,
    Curve,
    Curves,
    Parallel,
    ResourceCurve,
    ResourceCurves,
    Run,
    RunKind,
    RunPage,
    Sampling,
    StepMetrics,
    Tagged,
)


class Shape(TypedDict, total=False):
    """How curves are thinned, placed on an axis, cut out (`first` to `last`) and smoothed."""

    axis: Axis
    first: float
    last: float
    smoothing: float
    sampling: Sampling


def _plain(shape: Shape) -> Params:
    return cast("Params", shape)


class Runs(Calls):
    """Runs of history: metrics, curves, comparisons, failures."""

    def runs(
        self,
        *,
        team: str | None = None,
        name: str | None = None,
        where: str | None = None,
        order_by: Sequence[str] = (),
        kind: RunKind | None = None,
        limit: int | None = None,
    ) -> Iterator[Run]:
        """Runs of history, newest first or by `order_by`, read page by page; at most `limit`.

        `where` is a filter such as "params.lr = '0.1' and metrics.loss < 2 and gpu_hours > 10".
        With `where` or `order_by` also runs that MLflow clients made, unless `kind` is "job".
        """
        wanted = {
            "team": team,
            "name": name,
            "where": where,
            "order_by": [*order_by] or None,
            "kind": kind,
        }
        return self._items(RunPage, "/v1/runs", "runs", limit, **wanted)

    def metrics(
        self, run_id: str, names: Sequence[str] = (), *, follow: bool = False
    ) -> Iterator[StepMetrics]:
        """A run's steps so far, thinned to about 1,000; with `follow` also each new one.

        A step may come twice; the later one counts.
        """
        path = f"/training-runs/{path_id(run_id)}/metrics"
        params: Params = {"name": [*names] or None}
        if not follow:
            curves = self._read(Curves, "GET", path, params=params).curves
            yield from steps_of(curves)
            return
        for event in self._transport.events(path, params):
            if event.event == "history":
                yield from steps_of(parse(Curves, event.data).curves)
            elif event.event == "step":
                yield parse(StepMetrics, event.data)

    def curves(
        self,
        run_id: str,
        names: Sequence[str] = (),
        points: int = 500,
        *,
        system: bool = False,
        **shape: Unpack[Shape],
    ) -> Sequence[Curve]:
        """Curves of a run's metrics (all: none named), thinned to about `points` points.

        `system`: if none is named, the metrics that node agents took of the run.
        """
        path = f"/v1/runs/{path_id(run_id)}/curves"
        params: Params = {
            "name": [*names] or None,
            "points": max(2, points),
            "system": system or None,
            **_plain(shape),
        }
        return self._read(Curves, "GET", path, params=params).curves

    def points(
        self,
        run_ids: Sequence[str],
        *,
        kind: Literal["job", "mlflow"] = "job",
        names: Sequence[str] = (),
        first: int | None = None,
        form: Literal["parquet", "jsonl"] = "jsonl",
        limit: int = 100_000,
    ) -> Iterator[bytes]:
        """All points of up to 100 runs, from the step `first` on: pages of about `limit` points.

        Each is a Parquet file, or lines of JSON.
        """
        params: Params = {
            "run": [path_id(run_id) for run_id in run_ids],
            "kind": kind,
            "name": [*names] or None,
            "first": first,
            "format": form,
            "limit": limit,
        }
        return self._transport.pages("/v1/runs/points", params)

    def mlflow(self, team: str | None = None) -> Mlflow:
        """The MLflow runs of a team; without one of the token's only team, or of `default`."""
        try:
            team = team or team_of(self._read(Whoami, "GET", "/v1/whoami").teams)
        except Refused as refused:
            raise CliError(str(refused), "give --team", ExitCode.USAGE) from None
        return Mlflow(self._transport, team)

    def compare(
        self,
        run_ids: Sequence[str],
        names: Sequence[str] = (),
        points: int = 200,
        **shape: Unpack[Shape],
    ) -> Comparison:
        """Configurations' differences, metrics and curves of up to 50 runs side by side."""
        params: Params = {
            "run": [path_id(run_id) for run_id in run_ids],
            "name": [*names] or None,
            "points": max(2, points),
            **_plain(shape),
        }
        return self._read(Comparison, "GET", "/v1/runs/compare", params=params)

    def resources(self, run_ids: Sequence[str], points: int = 200) -> Sequence[ResourceCurve]:
        """Resources that runs used over time: GPUs, CPU, memory, GPU-hours and cost."""
        params: Params = {"run": [path_id(run_id) for run_id in run_ids], "points": points}
        return self._read(ResourceCurves, "GET", "/v1/runs/resources", params=params).curves

    def parallel(
        self,
        run_ids: Sequence[str] = (),
        *,
        where: str | None = None,
        order_by: Sequence[str] = (),
        names: Sequence[str] = (),
        limit: int = 100,
    ) -> Parallel:
        """Parameters and final metrics of these runs, or of those of a filter, on parallel axes."""
        params: Params = {
            "run": [path_id(run_id) for run_id in run_ids] or None,
            "where": where,
            "order_by": [*order_by] or None,
            "name": [*names] or None,
            "limit": limit,
        }
        return self._read(Parallel, "GET", "/v1/runs/parallel", params=params)

    def tag(self, run_id: str, tags: Mapping[str, str | None]) -> Tagged:
        """Set a run's tags, also after its end; None removes a tag."""
        path = f"/v1/runs/{path_id(run_id)}/tags"
        return self._read(Tagged, "POST", path, body={"tags": dict(tags)}, repeatable=True)

    def incidents(
        self,
        job_id: str | None = None,
        *,
        team: str | None = None,
        node: str | None = None,
        since: datetime | None = None,
        limit: int | None = None,
    ) -> IncidentPage:
        """The newest `limit` failures (None: all), of one job or of all, and the totals of all.

        `notices` are the newest observations of gangs that kept running.
        """
        wanted = {
            "job": None if job_id is None else path_id(job_id),
            "team": team,
            "node": None if node is None else path_id(node),
            "since": since.isoformat() if since else None,
        }
        return self._whole(IncidentPage, "/v1/incidents", "incidents", limit, **wanted)

    def incident(self, job_id: str, attempt: int) -> IncidentDetail:
        """The failure of one attempt, and what its ranks were doing if it hung."""
        path = f"/v1/incidents/{path_id(job_id)}/{attempt}"
        return self._read(IncidentDetail, "GET", path)
