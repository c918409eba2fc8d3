"""The cluster for its operators: its load, the jobs that wait and why, and nodes with problems."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from boards.panels import Panel, board, graph, marks, number, row, rows, team_variable
from boards.queries import JOB_LINK, OF_TEAMS, RUNNING, SAMPLED, prom


def dashboard() -> Dashboard:
    """See the module."""
    failures = marks(
        "Node failures",
        """SELECT time, JSONExtractString(data, 'node_id') AS title,
        JSONExtractString(data, 'reason') AS text FROM events
        WHERE type = 'node.failed' AND $__timeFilter(time) ORDER BY time LIMIT 200""",
        "red",
    )
    return board(
        "cluster",
        "Cluster",
        "GPUs in use, jobs that wait and why, alerts, and nodes.",
        variables=[team_variable()],
        annotations=[failures],
        panels=[
            *_now(),
            row("GPUs"),
            *_gpus(),
            row("Queue"),
            *_queue(),
            row("Alerts"),
            _alerts(),
            row("Nodes"),
            *_nodes(),
        ],
    )


def _now() -> list[Panel]:
    return [
        number(
            "GPUs allocated",
            prom(
                """max(gangline_gpus_allocated) / max(gangline_gpus_offered)
                and max(gangline_gpus_offered) > 0"""
            ),
            "GPUs of gangs, of those of all nodes that take gangs.",
            unit="percentunit",
            colours=((None, "red"), (0.6, "orange"), (0.8, "green")),
            none="no data",
        ),
        number(
            "GPUs of jobs",
            f"SELECT sumIf(gpus, state IN {RUNNING}) AS gpus FROM run_list WHERE {OF_TEAMS}",
            "GPUs that jobs of the chosen teams have now.",
        ),
        number(
            "Jobs that run",
            f"SELECT countIf(state IN {RUNNING}) AS running FROM run_list WHERE {OF_TEAMS}",
            "Jobs that have their GPUs.",
        ),
        number(
            "Jobs that wait",
            f"""SELECT countIf(state IN ('pending', 'preempted')) AS waiting
            FROM run_list WHERE {OF_TEAMS}""",
            "Why each of them waits is in the table below.",
        ),
        number(
            "Longest wait",
            f"""SELECT if(count() = 0, 0, dateDiff('second', min(submitted_at), now())) AS wait
            FROM run_list WHERE state = 'pending' AND {OF_TEAMS}""",
            "Since the submission of the job that has waited longest, of whatever priority.",
            unit="s",
            colours=((None, "text"), (7200, "orange"), (86400, "red")),
        ),
        number(
            "Nodes alive",
            """SELECT uniqExact(node_id) AS nodes FROM heartbeats
            WHERE time > now() - INTERVAL 2 MINUTE AND ingested > now() - INTERVAL 10 MINUTE""",
            "Nodes that sent a heartbeat within two minutes.",
        ),
    ]


def _gpus() -> list[Panel]:
    return [
        graph(
            "GPUs allocated and offered",
            [
                prom("max(gangline_gpus_offered)", "offered"),
                prom("max(gangline_gpus_allocated)", "allocated"),
            ],
            "The space between the lines is free, or too scattered for the gangs that wait.",
        ),
        graph(
            "GPU-hours by team",
            f"""SELECT $__timeInterval(released_at) AS time, team,
            sum(gpu_seconds) / 3600 AS gpu_hours FROM usage FINAL
            WHERE $__timeFilter(released_at) AND {OF_TEAMS} GROUP BY time, team ORDER BY time""",
            "Charged when a gang gives its GPUs back.",
            unit="h",
            bars=True,
        ),
        graph(
            "GPU activity",
            f"""SELECT $__timeInterval(time) AS time, avg(utilization) AS mean,
            quantile(0.1)(utilization) AS p10, quantile(0.9)(utilization) AS p90
            FROM (SELECT time, arrayJoin(gpu_utilization) AS utilization FROM heartbeats
                WHERE {SAMPLED})
            WHERE isNotNull(utilization) GROUP BY time ORDER BY time""",
            "Activity that NVML reports, over all GPUs. A low p10 means GPUs that no job uses.",
            unit="percent",
            most=100,
        ),
        graph(
            "Hottest GPUs",
            f"""SELECT $__timeInterval(time) AS time, max(temperature) AS hottest,
            quantile(0.9)(temperature) AS p90
            FROM (SELECT time, arrayJoin(gpu_temperature_c) AS temperature FROM heartbeats
                WHERE {SAMPLED})
            WHERE isNotNull(temperature) GROUP BY time ORDER BY time""",
            "Temperatures over all GPUs.",
            unit="celsius",
            colours=((None, "transparent"), (85, "red")),
        ),
    ]


def _queue() -> list[Panel]:
    return [
        rows(
            "Jobs that wait, and why",
            f"""SELECT job_id, team, user, gpus, priority, state, submitted_at,
            dateDiff('second', submitted_at, now()) AS waits, reason FROM run_list
            WHERE state IN ('pending', 'preempted') AND {OF_TEAMS}
            ORDER BY submitted_at LIMIT 200""",
            "The reason is the scheduler's. `gangline explain JOB` has more of it.",
            units={"waits": "s"},
            links={"job_id": JOB_LINK},
            colours={"waits": ((None, "text"), (7200, "orange"), (86400, "red"))},
        ),
        graph(
            "Wait before the start",
            f"""SELECT assumeNotNull($__timeInterval(started_at)) AS time,
            quantile(0.5)(dateDiff('second', submitted_at, started_at)) AS p50,
            quantile(0.95)(dateDiff('second', submitted_at, started_at)) AS p95
            FROM run_list WHERE isNotNull(started_at) AND $__timeFilter(started_at)
            AND {OF_TEAMS} GROUP BY time ORDER BY time""",
            "From the submission to the first start, of jobs that started in the interval.",
            unit="s",
        ),
        graph(
            "Jobs by outcome",
            f"""SELECT assumeNotNull($__timeInterval(ended_at)) AS time, state,
            toFloat64(count()) AS jobs
            FROM run_list WHERE isNotNull(ended_at) AND $__timeFilter(ended_at)
            AND {OF_TEAMS} GROUP BY time, state ORDER BY time""",
            "Jobs that ended in the interval.",
            bars=True,
        ),
    ]


def _alerts() -> Panel:
    return rows(
        "Alerts that hold",
        f"""SELECT since, rule, severity, about, team, message FROM (
            SELECT JSONExtractUInt(data, 'number') AS number, min(time) AS since,
                max(JSONExtractString(data, 'rule')) AS rule,
                max(JSONExtractString(data, 'severity')) AS severity,
                max(JSONExtractString(data, 'subject')) AS about,
                max(JSONExtractString(data, 'team')) AS team,
                max(JSONExtractString(data, 'message')) AS message
            FROM events WHERE type IN ('alert.raised', 'alert.resolved')
            AND time > now() - INTERVAL 30 DAY
            GROUP BY number HAVING countIf(type = 'alert.resolved') = 0
        ) WHERE {OF_TEAMS} ORDER BY since DESC LIMIT 200""",
        "Alerts that were raised in 30 days and are not resolved.",
        height=6,
    )


def _nodes() -> list[Panel]:
    return [
        rows(
            "Nodes",
            """SELECT node_id, max(time) AS newest,
            dateDiff('second', max(time), now()) AS silent,
            argMax(arrayStringConcat(jobs, ', '), time) AS runs,
            argMax(length(gpu_index), time) AS gpus,
            argMax(arrayAvg(arrayMap(x -> ifNull(x, 0), gpu_utilization)), time) AS activity,
            argMax(arrayMax(arrayMap(x -> ifNull(x, 0), gpu_temperature_c)), time) AS hottest,
            argMax(cpu_percent, time) AS cpu, argMax(memory_used_gb, time) AS memory
            FROM heartbeats WHERE time > now() - INTERVAL 5 MINUTE
            AND ingested > now() - INTERVAL 15 MINUTE
            GROUP BY node_id ORDER BY silent DESC, node_id LIMIT 2000""",
            "The newest heartbeat of each node within five minutes; silent ones first.",
            units={
                "silent": "s",
                "activity": "percent",
                "hottest": "celsius",
                "cpu": "percent",
                "memory": "gbytes",
            },
            colours={
                "silent": ((None, "green"), (15, "orange"), (60, "red")),
                "hottest": ((None, "text"), (85, "red")),
            },
            height=10,
        ),
        rows(
            "Events of nodes",
            """SELECT time, type, JSONExtractString(data, 'node_id') AS node_id,
            JSONExtractString(data, 'reason') AS reason FROM events
            WHERE type IN ('node.failed', 'node.suspected', 'node.left', 'node.cordoned',
            'node.uncordoned', 'node.recovered', 'node.distrusted', 'node.unfit')
            AND $__timeFilter(time) ORDER BY time DESC LIMIT 200""",
            "Nodes that failed, left, were cordoned or came back.",
        ),
    ]
