"""Checkpoints and faults: do saves work, what breaks, how fast is it repaired, at what cost."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from boards.panels import Panel, bars, board, graph, number, row, rows, team_variable
from boards.queries import JOB_LINK, OF_TEAMS, prom

_JOBS = f"(SELECT job_id FROM runs WHERE {OF_TEAMS})"
_NOTED = f"FROM checkpoints FINAL WHERE $__timeFilter(time) AND job_id IN {_JOBS}"
_SAVED = f"{_NOTED} AND status = 'committed'"
_BROKEN = f"FROM incident_list WHERE $__timeFilter(failed_at) AND {OF_TEAMS}"


def dashboard() -> Dashboard:
    """See the module."""
    return board(
        "checkpoints",
        "Checkpoints and faults",
        "Saves and their speed; failures, their causes, recovery and cost.",
        variables=[team_variable()],
        since="now-24h",
        panels=[
            *_figures(),
            row("Checkpoints"),
            *_checkpoints(),
            row("Failures"),
            *_failures(),
        ],
    )


def _figures() -> list[Panel]:
    return [
        number(
            "Checkpoints committed",
            f"SELECT count() AS committed {_SAVED}",
            "In the time range. A job resumes from committed checkpoints alone.",
        ),
        number(
            "Saves that failed in a day",
            prom(
                """sum(gangline_day_saves{outcome="failed"}) / sum(gangline_day_saves)
                and sum(gangline_day_saves) > 0"""
            ),
            "Of the last 24 hours; the alert `failed-saves` is raised above 1 %.",
            unit="percentunit",
            colours=((None, "green"), (0.005, "orange"), (0.01, "red")),
            decimals=2,
            none="no save",
        ),
        number(
            "Damaged",
            f"SELECT countIf(status = 'corrupted') AS damaged {_NOTED}",
            "Checkpoints whose bytes, read in the time range, were not those that were written.",
            colours=((None, "green"), (1, "red")),
        ),
        number(
            "Failures",
            f"SELECT count() AS failures {_BROKEN}",
            "Gangs that failed in the time range.",
        ),
        number(
            "Recovery, P95",
            f"SELECT ifNull(quantileIf(0.95)(assumeNotNull(recover_s), isNotNull(recover_s)), 0) "
            f"AS recovery {_BROKEN} HAVING count() > 0",
            "From the failure to the first new step, of failures that were recovered.",
            unit="s",
            colours=((None, "green"), (60, "orange"), (300, "red")),
            none="no failure",
        ),
        number(
            "GPU-hours lost",
            f"SELECT sum(lost_gpu_s) / 3600 AS lost {_BROKEN}",
            "Steps that were trained again, and time in which nothing ran.",
            unit="h",
            decimals=1,
        ),
    ]


def _checkpoints() -> list[Panel]:
    return [
        graph(
            "Checkpoints by status",
            f"""SELECT $__timeInterval(time) AS time, status, toFloat64(count()) AS checkpoints
            {_NOTED} GROUP BY time, status ORDER BY time""",
            "Each status that a checkpoint got, in the interval in which it got it.",
            bars=True,
        ),
        graph(
            "How long a save takes",
            f"""SELECT $__timeInterval(time) AS time, quantile(0.95)(write_s) AS write,
            quantile(0.95)(verify_s) AS verify, quantile(0.95)(blocked_s) AS blocked
            {_SAVED} GROUP BY time ORDER BY time""",
            "P95. Training stands still while it is blocked, but not while files are written.",
            unit="s",
            logarithmic=True,
        ),
        graph(
            "Bytes written",
            f"""SELECT $__timeInterval(time) AS time, toFloat64(sum(size_bytes)) AS written
            {_SAVED} GROUP BY time ORDER BY time""",
            "Bytes of committed checkpoints; incremental ones count what they wrote themselves.",
            unit="bytes",
            bars=True,
        ),
        rows(
            "Saves held back by a slow store",
            f"""SELECT job_id, since, save_every_s, risk FROM (
                SELECT subject AS job_id, max(time) AS since,
                    argMax(JSONExtractFloat(data, 'interval_s'), time) AS save_every_s,
                    argMax(JSONExtractString(data, 'risk'), time) AS risk FROM events
                WHERE type = 'checkpoint.interval.advised' AND $__timeFilter(time)
                GROUP BY subject
            ) WHERE risk != '' AND job_id IN {_JOBS} ORDER BY since DESC LIMIT 100""",
            "Jobs that are advised to save less often than is best, and what a failure is "
            "expected to cost them.",
            units={"save_every_s": "s"},
            links={"job_id": JOB_LINK},
            span=12,
        ),
        rows(
            "Checkpoints that are of no use",
            f"""SELECT time, job_id, attempt, step, status, reason {_NOTED}
            AND status IN ('abandoned', 'corrupted') ORDER BY time DESC LIMIT 200""",
            "Abandoned ones were never whole; corrupted ones have other bytes than were written.",
            links={"job_id": JOB_LINK},
            height=7,
        ),
    ]


def _failures() -> list[Panel]:
    return [
        graph(
            "Failures by cause",
            f"""SELECT $__timeInterval(failed_at) AS time, cause, toFloat64(count()) AS failures
            {_BROKEN} GROUP BY time, cause ORDER BY time""",
            "The causes and their runbooks are in docs/runbooks.",
            bars=True,
        ),
        graph(
            "Recovery",
            f"""SELECT $__timeInterval(failed_at) AS time,
            quantile(0.5)(assumeNotNull(recover_s)) AS p50,
            quantile(0.95)(assumeNotNull(recover_s)) AS p95
            {_BROKEN} AND isNotNull(recover_s) GROUP BY time ORDER BY time""",
            "From the failure to the first new step.",
            unit="s",
            logarithmic=True,
        ),
        bars(
            "Nodes with most failures",
            f"""SELECT node_id, toFloat64(count()) AS failures {_BROKEN} AND node_id != ''
            GROUP BY node_id ORDER BY failures DESC, node_id LIMIT 15""",
            "Nodes where a rank failed first. Drain one that leads for days.",
        ),
        bars(
            "GPU-hours lost by cause",
            f"""SELECT cause, sum(lost_gpu_s) / 3600 AS hours {_BROKEN}
            GROUP BY cause ORDER BY hours DESC LIMIT 15""",
            "Which cause costs most.",
            unit="h",
        ),
        bars(
            "Outcome of failures",
            f"""SELECT outcome, toFloat64(count()) AS failures {_BROKEN}
            GROUP BY outcome ORDER BY failures DESC LIMIT 15""",
            "Whether the job trained again after its failure.",
        ),
        rows(
            "Failed gangs",
            f"""SELECT failed_at, job_id, team, attempt, outcome, cause, action, node_id, message,
            recover_s, work_lost_s, lost_gpu_s / 3600 AS lost_gpu_hours {_BROKEN}
            ORDER BY failed_at DESC LIMIT 300""",
            "One row for each gang that failed: the rank that failed first.",
            units={"recover_s": "s", "work_lost_s": "s", "lost_gpu_hours": "h"},
            links={"job_id": JOB_LINK},
            height=10,
        ),
    ]
