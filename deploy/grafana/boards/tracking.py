"""Tracking for researchers: chosen runs side by side, by step and by time."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from boards.panels import Panel, board, by_step, chosen, graph, row, rows, team_variable
from boards.queries import JOB_LINK, OF_TEAMS

_RUNS = "${run:singlequote}"
_METRIC = "${metric:singlequote}"
_MLFLOW = f"(SELECT mlflow_run_id FROM runs WHERE job_id IN ({_RUNS}))"


def dashboard() -> Dashboard:
    """See the module."""
    run = chosen(
        "run",
        "Runs",
        f"""SELECT job_id FROM runs WHERE {OF_TEAMS}
        GROUP BY job_id ORDER BY max(submitted_at) DESC LIMIT 500""",
        every=False,
    )
    metric = chosen(
        "metric",
        "Metric",
        f"""SELECT name FROM (
            SELECT toString(name) AS name FROM steps WHERE run_id IN ({_RUNS}) GROUP BY name
            UNION ALL
            SELECT toString(name) AS name FROM metric_points WHERE run_id IN {_MLFLOW}
            GROUP BY name
        ) GROUP BY name ORDER BY name != 'loss', name LIMIT 1000""",
        multi=False,
        every=False,
        about="A metric that the chosen runs reported, or logged to MLflow.",
    )
    return board(
        "tracking",
        "Tracking",
        "Runs side by side: curves of a metric, last and best values, settings, resources.",
        variables=[team_variable(), run, metric],
        since="now-7d",
        refresh="",
        panels=[
            row("$metric"),
            *_curves(),
            row("Runs"),
            *_runs(),
            row("MLflow"),
            _points(),
        ],
    )


def _curves() -> list[Panel]:
    return [
        by_step(
            "$metric by step",
            f"""SELECT run, toFloat64(max(last)) AS step, argMax(newest, attempt) AS value FROM (
                SELECT run_id AS run, attempt, intDiv(step, greatest(1, intDiv(most, 400)))
                    AS bucket, max(step) AS last, avg(value) AS newest
                FROM steps INNER JOIN (SELECT run_id AS of, max(step) AS most FROM steps
                    WHERE run_id IN ({_RUNS}) AND name = {_METRIC} GROUP BY run_id) AS length
                ON steps.run_id = length.of
                WHERE run_id IN ({_RUNS}) AND name = {_METRIC}
                GROUP BY run, attempt, bucket
            ) GROUP BY run, bucket ORDER BY run, step""",
            "Means of at most 400 parts of each run. Of steps that were trained twice, the "
            "later attempt counts.",
        ),
        graph(
            "$metric by time",
            f"""SELECT $__timeInterval(time) AS time, run_id AS run, avg(value) AS value FROM steps
            WHERE run_id IN ({_RUNS}) AND name = {_METRIC} AND $__timeFilter(time)
            GROUP BY time, run ORDER BY time""",
            "Means of each interval of the time range.",
            height=9,
            zero=False,
        ),
    ]


def _runs() -> list[Panel]:
    return [
        rows(
            "Last and best",
            # The inner query has the expressions of the table's roll-up by run.
            f"""SELECT run, metric, argMax(newest, (attempt, newest_step)) AS last,
            min(smallest) AS least, max(largest) AS most, max(newest_step) AS step FROM (
                SELECT run_id AS run, name AS metric, attempt, rank, team,
                    max(step) AS newest_step, argMax(value, step) AS newest,
                    min(value) AS smallest, max(value) AS largest
                FROM steps WHERE run_id IN ({_RUNS}) GROUP BY run, metric, attempt, rank, team
            ) GROUP BY run, metric ORDER BY metric, run LIMIT 2000""",
            "Of every metric of the chosen runs, over their whole life.",
            links={"run": JOB_LINK},
            span=12,
        ),
        rows(
            "Resources",
            f"""SELECT job_id AS run, name, team, state, gpus, attempt, restarts,
            gpu_seconds / 3600 AS gpu_hours, submitted_at, started_at, ended_at, code_ref,
            data_snapshot FROM run_list WHERE job_id IN ({_RUNS}) ORDER BY submitted_at""",
            "GPUs and GPU-hours of each run, and the code and data that it ran with.",
            units={"gpu_hours": "h"},
            links={"run": JOB_LINK},
            span=12,
        ),
        rows(
            "Hyperparameters",
            f"""SELECT key, run, value FROM (
                SELECT job_id AS run, arrayJoin(mapKeys(hyperparameters)) AS key,
                    hyperparameters[key] AS value FROM run_list WHERE job_id IN ({_RUNS})
            ) ORDER BY key, run LIMIT 5000""",
            "One row for each setting of each run. Filter by `key` to compare one.",
        ),
    ]


def _points() -> Panel:
    return graph(
        "$metric in MLflow",
        f"""SELECT $__timeInterval(at) AS time, job_id AS run, avg(value) AS value FROM (
            SELECT fromUnixTimestamp64Milli(p.time_ms) AS at, p.value AS value, r.job_id AS job_id
            FROM metric_points AS p INNER JOIN (SELECT job_id, mlflow_run_id FROM runs FINAL
                WHERE job_id IN ({_RUNS})) AS r ON p.run_id = r.mlflow_run_id
            WHERE p.run_id IN {_MLFLOW} AND p.name = {_METRIC} AND NOT p.is_nan
            AND p.time_ms >= toUnixTimestamp64Milli($__fromTime_ms)
            AND p.time_ms <= toUnixTimestamp64Milli($__toTime_ms)
        ) GROUP BY time, run ORDER BY time""",
        "Points that the chosen jobs logged to their own MLflow run.",
        zero=False,
        span=24,
    )
