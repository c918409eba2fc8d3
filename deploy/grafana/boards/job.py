"""One job for its owner: does it learn, how fast is it, what held it up, and what did it cost."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from boards.panels import (
    Panel,
    board,
    chosen,
    graph,
    lines_of_text,
    marks,
    number,
    row,
    rows,
    states,
    team_variable,
)
from boards.queries import MEASURED, OF_TEAMS, SAMPLED

RUN = "${run:singlequote}"
_STATES = {
    "pending": "yellow",
    "scheduled": "light-blue",
    "initializing": "blue",
    "running": "green",
    "checkpointing": "dark-green",
    "preempted": "orange",
    "succeeded": "super-light-green",
    "failed": "red",
    "cancelled": "text",
}


def dashboard() -> Dashboard:
    """See the module."""
    run = chosen(
        "run",
        "Job",
        f"""SELECT job_id FROM runs WHERE {OF_TEAMS}
        GROUP BY job_id ORDER BY max(submitted_at) DESC LIMIT 500""",
        multi=False,
        every=False,
    )
    failures = marks(
        "Failures",
        f"""SELECT failed_at AS time, cause AS title, message AS text FROM incident_list
        WHERE job_id = {RUN} AND $__timeFilter(failed_at) ORDER BY failed_at LIMIT 200""",
        "red",
    )
    saves = marks(
        "Checkpoints",
        f"""SELECT time, concat('step ', toString(step)) AS title, status AS text
        FROM checkpoint_list WHERE job_id = {RUN} AND status = 'committed'
        AND $__timeFilter(time) ORDER BY time LIMIT 500""",
        "blue",
    )
    saves.enable(enable=False)
    return board(
        "job",
        "Job",
        "One job: its state, curves, speed, failures, checkpoints, GPUs and log.",
        variables=[team_variable(), run],
        annotations=[failures, saves],
        refresh="30s",
        panels=[
            *_state(),
            row("Training"),
            *_training(),
            row("Speed"),
            *_speed(),
            row("Nodes of the job"),
            *_nodes(),
            row("Failures and checkpoints"),
            *_incidents(),
            row("Log"),
            lines_of_text(
                "Log",
                f"""SELECT time AS timestamp, text AS body, stream AS level, attempt, rank,
                node_id, line FROM logs WHERE job_id = {RUN} AND $__timeFilter(time)
                ORDER BY timestamp DESC, line DESC LIMIT 1000""",
                "The newest 1,000 lines of all ranks in the time range.",
            ),
        ],
    )


def _fact(title: str, expression: str, description: str, unit: str = "short") -> Panel:
    return number(
        title,
        f"SELECT {expression} AS value FROM run_list WHERE job_id = {RUN}",
        description,
        unit=unit,
        span=3,
        none="-",
    )


def _state() -> list[Panel]:
    until = "ifNull(ended_at, now64(3))"
    return [
        _fact("State", "toString(state)", "Where the job is in its life."),
        _fact("GPUs", "gpus", "GPUs that the job asks for."),
        _fact("Attempt", "attempt", "The number of its newest gang."),
        _fact("Restarts", "restarts", "After failures; preemptions do not count."),
        _fact(
            "Waited",
            "dateDiff('second', submitted_at, ifNull(started_at, now64(3)))",
            "From the submission to the first start.",
            "s",
        ),
        _fact(
            "Since its start",
            f"if(isNull(started_at), 0, dateDiff('second', started_at, {until}))",
            "From the first start to the end, or to now.",
            "s",
        ),
        _fact("GPU-hours", "gpu_seconds / 3600", "Charged so far: of gangs that ended.", "h"),
        number(
            "Lost to failures",
            f"""SELECT ifNull(sum(lost_gpu_s), 0) / 3600 AS hours FROM incident_list
            WHERE job_id = {RUN}""",
            "GPU-hours of steps that were trained again, and of time in which nothing ran.",
            unit="h",
            span=3,
        ),
        states(
            "States",
            f"""SELECT time, JSONExtractString(data, 'state') AS state FROM events
            WHERE type = 'job.state.changed' AND subject = {RUN} AND $__timeFilter(time)
            ORDER BY time LIMIT 2000""",
            "States of the job over time.",
            _STATES,
        ),
    ]


def _curve(
    title: str, name: str, about: str, unit: str = "short", *, worst: str = "avg", zero: bool = True
) -> Panel:
    return graph(
        title,
        f"""SELECT $__timeInterval(time) AS time, concat('attempt ', toString(attempt)) AS series,
        {worst}(value) AS value FROM steps WHERE run_id = {RUN} AND name = '{name}'
        AND $__timeFilter(time) GROUP BY time, series ORDER BY time""",
        about,
        unit=unit,
        zero=zero,
    )


def _training() -> list[Panel]:
    again = "A new attempt repeats the steps after its checkpoint."
    return [
        _curve("Loss", "loss", f"Mean of the interval. {again}", zero=False),
        _curve(
            "Gradient norm",
            "grad_norm",
            "The largest of the interval: peaks announce a loss that diverges.",
            worst="max",
        ),
        _curve("Learning rate", "lr", "As the script reported it.", "sci"),
        rows(
            "Metrics",
            # The inner query has the expressions of the table's roll-up by run.
            f"""SELECT metric, argMax(newest, (attempt, newest_step)) AS last,
            min(smallest) AS least, max(largest) AS most, max(newest_step) AS step FROM (
                SELECT name AS metric, attempt, rank, team, max(step) AS newest_step,
                    argMax(value, step) AS newest, min(value) AS smallest, max(value) AS largest
                FROM steps WHERE run_id = {RUN} GROUP BY run_id, metric, attempt, rank, team
            ) GROUP BY metric ORDER BY metric LIMIT 500""",
            "All metrics that the job reported, over its whole life.",
            span=12,
        ),
    ]


def _speed() -> list[Panel]:
    return [
        _curve("Tokens per second", "tokens_per_s", "Of the whole gang."),
        _curve("Step time", "step_s", "The slowest rank of the interval.", "s", worst="max"),
        graph(
            "Share of a step that waits for data",
            f"""SELECT $__timeInterval(time) AS time, sumIf(value, name = 'data_wait_s')
            / nullIf(sumIf(value, name = 'step_s'), 0) AS share FROM steps
            WHERE run_id = {RUN} AND name IN ('data_wait_s', 'step_s') AND $__timeFilter(time)
            GROUP BY time ORDER BY time""",
            "Above 20 %, give the loader more workers or more prefetch.",
            unit="percentunit",
            most=1,
            colours=((None, "transparent"), (0.2, "red")),
        ),
        _curve("MFU", "mfu", "Model FLOPs per second, of the GPUs' peak.", "percentunit"),
        graph(
            "GPU activity by node",
            f"""SELECT $__timeInterval(time) AS time, node_id, avg(utilization) AS activity
            FROM (SELECT time, node_id, arrayJoin(gpu_utilization) AS utilization FROM heartbeats
                WHERE {SAMPLED} AND has(jobs, {RUN}))
            WHERE isNotNull(utilization) GROUP BY time, node_id ORDER BY time""",
            "Nodes of the job. One that differs from the others is worth a look.",
            unit="percent",
            most=100,
        ),
        graph(
            "GPU memory by node",
            f"""SELECT $__timeInterval(time) AS time, node_id, max(used) AS memory
            FROM (SELECT time, node_id, arrayJoin(gpu_memory_used_gb) AS used FROM heartbeats
                WHERE {SAMPLED} AND has(jobs, {RUN}))
            WHERE isNotNull(used) GROUP BY time, node_id ORDER BY time""",
            "The fullest GPU of each node.",
            unit="gbytes",
        ),
    ]


def _of_gpus(title: str, column: str, about: str, unit: str, *, most: float | None = None) -> Panel:
    return graph(
        title,
        f"""SELECT $__timeInterval(time) AS time, node_id, avg(used) AS value
        FROM (SELECT time, node_id, arrayJoin({column}) AS used FROM heartbeats
            WHERE {MEASURED} AND has(jobs, {RUN}))
        WHERE isNotNull(used) GROUP BY time, node_id ORDER BY time""",
        about,
        unit=unit,
        most=most,
    )


def _of_node(title: str, received: str, sent: str, about: str) -> Panel:
    return graph(
        title,
        f"""SELECT $__timeInterval(time) AS time, concat(node_id, ' ', pair.1) AS series,
        avg(pair.2) AS value FROM (
            SELECT time, node_id, arrayJoin([('{received}', {received}_mb_s),
                ('{sent}', {sent}_mb_s)]) AS pair FROM heartbeats
            WHERE {MEASURED} AND has(jobs, {RUN}))
        WHERE isNotNull(pair.2) GROUP BY time, series ORDER BY time""",
        about,
        unit="MBs",
    )


def _nodes() -> list[Panel]:
    return [
        _of_gpus(
            "SM activity",
            "gpu_sm_percent",
            "The share of the GPU's processors that work. A GPU can be active with few of them.",
            "percent",
            most=100,
        ),
        _of_gpus("Power of a GPU", "gpu_power_w", "Mean of the node's GPUs.", "watt"),
        _of_node(
            "Network", "network_receive", "network_send", "Of the whole node, also other jobs'."
        ),
        _of_node("Disk", "disk_read", "disk_write", "Of the whole node, also other jobs'."),
    ]


def _incidents() -> list[Panel]:
    return [
        rows(
            "Failures",
            f"""SELECT failed_at, attempt, outcome, cause, node_id, first_rank, message,
            recover_s, work_lost_s, lost_gpu_s FROM incident_list WHERE job_id = {RUN}
            ORDER BY failed_at DESC LIMIT 200""",
            "One row for each failed attempt: the rank that failed first, and its cost.",
            units={"recover_s": "s", "work_lost_s": "s", "lost_gpu_s": "s"},
        ),
        rows(
            "Checkpoints",
            f"""SELECT time, attempt, step, status, size_bytes, write_s, blocked_s, verify_s,
            reason FROM checkpoint_list WHERE job_id = {RUN} ORDER BY time DESC LIMIT 200""",
            "Training stands still for `blocked_s` alone.",
            units={"size_bytes": "bytes", "write_s": "s", "blocked_s": "s", "verify_s": "s"},
            span=14,
        ),
        rows(
            "Observations",
            f"""SELECT time, type, JSONExtractString(data, 'message') AS message FROM events
            WHERE subject = {RUN} AND type IN ('gang.troubled', 'worker.straggling', 'job.flagged',
            'gang.stopping', 'job.waiting', 'job.rejected') AND $__timeFilter(time)
            ORDER BY time DESC LIMIT 200""",
            "Stragglers, jumps of the loss, stops, and reasons to wait.",
            span=10,
        ),
    ]
