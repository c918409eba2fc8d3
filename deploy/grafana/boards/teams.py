"""Teams and cost: who used how much, of which budget, for what, and how much of it was lost."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from boards.panels import Panel, bars, board, graph, number, row, rows, team_variable, written
from boards.queries import JOB_LINK, OF_TEAMS, RUNNING

_USED = f"FROM usage FINAL WHERE $__timeFilter(released_at) AND {OF_TEAMS}"
_PRICE = """toFloat64OrZero(arrayFirst(x -> x[1] = model, arrayMap(x -> splitByChar('=', x),
splitByChar(',', replaceAll(${prices:singlequote}, ' ', ''))))[2])"""
_COSTS = f"""SELECT job_id, sum(seconds * price) / sum(seconds) AS price FROM (
    SELECT job_id, model, gpu_model_seconds[model] AS seconds, {_PRICE} AS price FROM (
        SELECT job_id, gpu_model_seconds, arrayJoin(mapKeys(gpu_model_seconds)) AS model
        FROM run_list WHERE {OF_TEAMS})
    WHERE seconds > 0) GROUP BY job_id"""
_LOST = f"FROM incident_list WHERE $__timeFilter(failed_at) AND {OF_TEAMS}"
_RUN = f"""FROM run_list WHERE job_id IN (SELECT job_id {_USED})"""
_ENDED = f"FROM run_list WHERE isNotNull(ended_at) AND $__timeFilter(ended_at) AND {OF_TEAMS}"


def dashboard() -> Dashboard:
    """See the module."""
    return board(
        "teams",
        "Teams and cost",
        "GPU-hours by team, project and user, budgets, queue times, and what was lost.",
        variables=[
            team_variable(),
            written(
                "prices",
                "Prices",
                "Prices of a GPU-hour by exact model, such as h100=2.5,a100-80gb=1.2. A model that "
                "is not here costs nothing.",
            ),
        ],
        since="now-7d",
        refresh="5m",
        panels=[
            *_figures(),
            row("Use"),
            *_use(),
            row("Cost"),
            *_cost(),
            row("Teams"),
            *_teams(),
            row("Jobs"),
            *_jobs(),
        ],
    )


def _figures() -> list[Panel]:
    return [
        number(
            "GPU-hours",
            f"SELECT sum(gpu_seconds) / 3600 AS hours {_USED}",
            "Of gangs that gave their GPUs back in the time range.",
            unit="h",
            decimals=1,
        ),
        number(
            "GPU-hours lost to failures",
            f"SELECT sum(lost_gpu_s) / 3600 AS hours {_LOST}",
            "Steps that were trained again, and time in which nothing ran.",
            unit="h",
            decimals=1,
        ),
        number(
            "GPU-hours of failed jobs",
            f"SELECT sumIf(gpu_seconds, state = 'failed') / 3600 AS hours {_ENDED}",
            "All GPU-hours of jobs that ended as failed in the time range.",
            unit="h",
            decimals=1,
        ),
        number(
            "Jobs that ended",
            f"SELECT count() AS jobs {_ENDED}",
            "In the time range, with whatever outcome.",
        ),
        number(
            "Failed jobs",
            f"""SELECT countIf(state = 'failed') / countIf(state != 'cancelled') AS share {_ENDED}
            HAVING countIf(state != 'cancelled') > 0""",
            "Of the jobs that ended and were not cancelled.",
            unit="percentunit",
            colours=((None, "green"), (0.05, "orange"), (0.2, "red")),
            none="no job",
        ),
        number(
            "Wait before the start, P95",
            f"""SELECT quantile(0.95)(dateDiff('second', submitted_at, assumeNotNull(started_at)))
            AS wait FROM run_list WHERE isNotNull(started_at) AND $__timeFilter(started_at)
            AND {OF_TEAMS} HAVING count() > 0""",
            "From the submission to the first start.",
            unit="s",
            none="no job",
        ),
    ]


def _use() -> list[Panel]:
    return [
        graph(
            "GPU-hours by team",
            f"""SELECT $__timeInterval(released_at) AS time, team,
            sum(gpu_seconds) / 3600 AS gpu_hours {_USED} GROUP BY time, team ORDER BY time""",
            "Charged when a gang gives its GPUs back: a job of two days shows at its end.",
            unit="h",
            bars=True,
            span=24,
        ),
        bars(
            "By team",
            f"""SELECT team, sum(gpu_seconds) / 3600 AS gpu_hours {_USED}
            GROUP BY team ORDER BY gpu_hours DESC LIMIT 25""",
            "GPU-hours in the time range.",
            unit="h",
        ),
        bars(
            "By project",
            f"""SELECT concat(u.team, ' / ', if(r.project = '', '(none)', r.project)) AS project,
            sum(u.gpu_seconds) / 3600 AS gpu_hours
            FROM (SELECT team, job_id, gpu_seconds {_USED}) AS u
            LEFT JOIN (SELECT job_id, project FROM run_list WHERE {OF_TEAMS}) AS r
            ON u.job_id = r.job_id GROUP BY project ORDER BY gpu_hours DESC LIMIT 25""",
            "GPU-hours of projects in the time range.",
            unit="h",
        ),
        bars(
            "By user",
            f"""SELECT r.user AS user, sum(u.gpu_seconds) / 3600 AS gpu_hours
            FROM (SELECT job_id, gpu_seconds {_USED}) AS u
            LEFT JOIN (SELECT job_id, user FROM run_list WHERE {OF_TEAMS}) AS r
            ON u.job_id = r.job_id GROUP BY user ORDER BY gpu_hours DESC LIMIT 25""",
            "GPU-hours of the users that submitted the jobs.",
            unit="h",
        ),
    ]


def _cost() -> list[Panel]:
    costs = f"(SELECT team, job_id, gpu_seconds, released_at {_USED}) AS u"
    prices = f"INNER JOIN ({_COSTS}) AS c ON u.job_id = c.job_id"
    cost = "sum(u.gpu_seconds / 3600 * c.price)"
    return [
        graph(
            "Cost by team",
            f"""SELECT $__timeInterval(at) AS time, team, sum(cost) AS cost FROM (
                SELECT u.released_at AS at, u.team AS team, u.gpu_seconds / 3600 * c.price AS cost
                FROM {costs} {prices}
            ) GROUP BY time, team ORDER BY time""",
            "GPU-hours by the prices above, charged when a gang gives its GPUs back.",
            bars=True,
        ),
        bars(
            "Cost of teams",
            f"""SELECT u.team AS team, {cost} AS cost FROM {costs} {prices}
            GROUP BY team ORDER BY cost DESC LIMIT 25""",
            "In the time range, in the currency of the prices.",
            span=6,
        ),
        bars(
            "GPU-hours by model",
            f"""SELECT model, sum(gpu_model_seconds[model]) / 3600 AS gpu_hours FROM (
                SELECT gpu_model_seconds, arrayJoin(mapKeys(gpu_model_seconds)) AS model {_RUN})
            GROUP BY model ORDER BY gpu_hours DESC LIMIT 25""",
            "Of jobs that had GPUs in the time range, over their whole life.",
            unit="h",
            span=6,
        ),
    ]


def _teams() -> list[Panel]:
    return [
        rows(
            "Limits and budgets",
            f"""SELECT c.team AS team, c.gpu_limit AS gpu_limit, c.guarantee AS guarantee,
            c.borrow AS borrow, n.gpus AS gpus_now, n.waiting AS waiting,
            m.hours AS hours_of_month, nullIf(c.budget, 0) AS budget_of_month,
            m.hours / nullIf(c.budget, 0) AS budget_used FROM (
                SELECT team, gpu_limit, guarantee, borrow, budget FROM (
                    SELECT JSONExtractString(data, 'config', 'team') AS team,
                        argMax(JSONExtractUInt(data, 'config', 'gpu_limit'), time) AS gpu_limit,
                        argMax(JSONExtractUInt(data, 'config', 'gpu_guarantee'), time) AS guarantee,
                        argMax(JSONExtractUInt(data, 'config', 'borrow_limit'), time) AS borrow,
                        argMax(JSONExtractFloat(data, 'config', 'gpu_hours_per_month'), time)
                        AS budget
                    FROM events WHERE type = 'team.configured' GROUP BY team
                ) WHERE {OF_TEAMS}
            ) AS c
            LEFT JOIN (SELECT team, sumIf(gpus, state IN {RUNNING}) AS gpus,
                countIf(state IN ('pending', 'preempted')) AS waiting
                FROM run_list GROUP BY team) AS n ON n.team = c.team
            LEFT JOIN (SELECT team, sum(gpu_seconds) / 3600 AS hours FROM usage FINAL
                WHERE released_at >= toStartOfMonth(now()) GROUP BY team) AS m ON m.team = c.team
            ORDER BY hours_of_month DESC, team LIMIT 500""",
            "The month's GPU-hours are those of gangs that ended in it. `gangline teams` also "
            "counts gangs that still run.",
            units={
                "hours_of_month": "h",
                "budget_of_month": "h",
                "budget_used": "percentunit",
            },
            colours={"budget_used": ((None, "green"), (0.8, "orange"), (1, "red"))},
        ),
        rows(
            "Outcome by team",
            f"""SELECT team, count() AS jobs, countIf(state = 'succeeded') AS succeeded,
            countIf(state = 'failed') AS failed, countIf(state = 'cancelled') AS cancelled,
            countIf(state = 'failed') / nullIf(countIf(state != 'cancelled'), 0) AS failed_share,
            quantile(0.5)(dateDiff('second', submitted_at, ifNull(started_at, ended_at)))
            AS wait_p50,
            quantile(0.95)(dateDiff('second', submitted_at, ifNull(started_at, ended_at)))
            AS wait_p95, sum(restarts) AS restarts, sum(gpu_seconds) / 3600 AS gpu_hours {_ENDED}
            GROUP BY team ORDER BY jobs DESC LIMIT 500""",
            "Jobs that ended in the time range.",
            units={
                "failed_share": "percentunit",
                "wait_p50": "s",
                "wait_p95": "s",
                "gpu_hours": "h",
            },
            colours={"failed_share": ((None, "green"), (0.05, "orange"), (0.2, "red"))},
            span=14,
        ),
        bars(
            "Lost to failures by team",
            f"""SELECT team, sum(lost_gpu_s) / 3600 AS hours {_LOST}
            GROUP BY team ORDER BY hours DESC LIMIT 25""",
            "GPU-hours in the time range.",
            unit="h",
            span=10,
        ),
    ]


def _jobs() -> list[Panel]:
    return [
        rows(
            "Jobs that used most",
            f"""SELECT u.job_id AS job_id, r.team AS team, r.project AS project, r.user AS user,
            r.state AS state, r.gpus AS gpus, u.hours AS gpu_hours, u.attempts AS attempts
            FROM (SELECT job_id, sum(gpu_seconds) / 3600 AS hours, count() AS attempts {_USED}
                GROUP BY job_id ORDER BY hours DESC LIMIT 100) AS u
            LEFT JOIN (SELECT job_id, team, project, user, state, gpus FROM run_list
                WHERE {OF_TEAMS}) AS r ON u.job_id = r.job_id
            ORDER BY gpu_hours DESC""",
            "The 100 jobs with most GPU-hours in the time range.",
            units={"gpu_hours": "h"},
            links={"job_id": JOB_LINK},
            height=10,
        )
    ]
