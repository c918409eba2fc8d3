"""The control plane for its operators: is each service up, does it keep up, what does it refuse.

Prometheus scrapes each service's /metrics under the job `gangline-SERVICE`.
"""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from boards.panels import Panel, board, graph, number, row, rows
from boards.queries import prom

_OURS = 'job=~"gangline-.+"'
_DURATION = "gangline_gateway_request_duration_seconds"


def dashboard() -> Dashboard:
    """See the module."""
    return board(
        "control-plane",
        "Control plane",
        "Services, decisions, the way of events into ClickHouse, and the gateway's answers.",
        variables=[],
        panels=[
            *_figures(),
            row("Decisions"),
            *_decisions(),
            row("Tracker"),
            *_tracker(),
            row("Gateway"),
            *_gateway(),
            row("Processes"),
            *_processes(),
        ],
    )


def _figures() -> list[Panel]:
    return [
        number(
            "Services away",
            prom(f"count(up{{{_OURS}}} == 0) or vector(0)"),
            "Processes that Prometheus cannot scrape.",
            colours=((None, "green"), (1, "red")),
            none="no data",
        ),
        number(
            "Deciders that lead",
            prom("sum(gangline_decider_shards)"),
            "Shards of decision logs that a process leads now. Each service has one shard.",
            none="no data",
        ),
        number(
            "Inputs skipped",
            prom("sum(gangline_bus_poisoned_total) or vector(0)"),
            "Inputs whose decision ended a service twice, since its start. Each is in a DLQ.",
            colours=((None, "green"), (1, "red")),
        ),
        number(
            "Records refused",
            prom("sum(gangline_bus_refused_total) or vector(0)"),
            "Records that are no valid events, since the services started. Their DLQs have them.",
            colours=((None, "green"), (1, "orange")),
        ),
        number(
            "Records missed",
            prom("sum(increase(gangline_tracker_missed_total[24h])) or vector(0)"),
            "In 24 hours: records that Kafka deleted before the tracker read them.",
            colours=((None, "green"), (1, "red")),
        ),
        number(
            "Alerts that hold",
            prom("sum(gangline_alerts_held) or vector(0)"),
            "Which ones is on the dashboard of the cluster.",
            colours=((None, "green"), (1, "orange")),
        ),
    ]


def _decisions() -> list[Panel]:
    return [
        graph(
            "Events decided",
            prom("sum by (job) (rate(gangline_decider_events_total[$__rate_interval]))", "{{job}}"),
            "Events that each service wrote to its log.",
            unit="cps",
        ),
        graph(
            "From submission to queue",
            """SELECT $__timeInterval(first) AS time, quantile(0.5)(taken) AS p50,
            quantile(0.99)(taken) AS p99 FROM (
                SELECT subject, minIf(time, type = 'job.submitted') AS first,
                    dateDiff('millisecond', first, minIf(time, type = 'job.queued')) AS taken
                FROM events WHERE type IN ('job.submitted', 'job.queued') AND $__timeFilter(time)
                GROUP BY subject HAVING countIf(type = 'job.submitted') > 0
                AND countIf(type = 'job.queued') > 0
            ) WHERE taken >= 0 GROUP BY time ORDER BY time""",
            "Time of quota and scheduler to take a job: Kafka, two decisions, two transactions.",
            unit="ms",
        ),
        graph(
            "Events by topic",
            """SELECT $__timeInterval(time) AS time, topic,
            count() / $__interval_s AS events FROM events
            WHERE $__timeFilter(time) GROUP BY time, topic ORDER BY time""",
            "Events per second, as ClickHouse has them: all topics but steps, heartbeats and logs.",
            unit="cps",
        ),
        graph(
            "Refused, unknown and skipped records",
            [
                prom(
                    "sum by (job) (rate(gangline_bus_refused_total[$__rate_interval]))",
                    "{{job}}: refused",
                ),
                prom(
                    "sum by (job) (rate(gangline_bus_unknown_total[$__rate_interval]))",
                    "{{job}}: unknown",
                ),
                prom(
                    "sum by (job) (rate(gangline_bus_poisoned_total[$__rate_interval]))",
                    "{{job}}: skipped",
                ),
            ],
            "Unknown: of a later version, during an upgrade. Others point to a broken writer.",
            unit="cps",
        ),
    ]


def _tracker() -> list[Panel]:
    return [
        graph(
            "Rows written to ClickHouse",
            prom(
                "sum by (table) (rate(gangline_tracker_rows_total[$__rate_interval]))", "{{table}}"
            ),
            "A table whose line ends is not written any more.",
            unit="cps",
        ),
        graph(
            "From event to row",
            """SELECT $__timeInterval(time) AS time,
            quantile(0.5)(greatest(0, dateDiff('second', time, ingested))) AS p50,
            quantile(0.99)(greatest(0, dateDiff('second', time, ingested))) AS p99
            FROM events WHERE $__timeFilter(time) GROUP BY time ORDER BY time""",
            "How old events are when they are in ClickHouse, to a second.",
            unit="s",
            colours=((None, "transparent"), (30, "red")),
        ),
        graph(
            "Live view",
            [
                prom("sum(rate(gangline_live_records_total[$__rate_interval]))", "records read"),
                prom(
                    "sum(rate(gangline_live_published_total[$__rate_interval]))",
                    "progress published",
                ),
            ],
            "Records of steps, and what is published of them.",
            unit="cps",
        ),
        graph(
            "Runs in the live view",
            prom("max(gangline_live_runs)", "runs"),
            "Runs whose newest values it keeps.",
        ),
    ]


def _gateway() -> list[Panel]:
    return [
        graph(
            "Requests",
            prom(f"sum by (status) (rate({_DURATION}_count[$__rate_interval]))", "{{status}}"),
            "By status of the answer.",
            unit="reqps",
        ),
        graph(
            "Time to answer, P99",
            prom(
                "topk(10, histogram_quantile(0.99, sum by (le, route) "
                f"(rate({_DURATION}_bucket[$__rate_interval]))))",
                "{{route}}",
            ),
            "The ten slowest routes. Streams last as long as their reader wants.",
            unit="s",
            logarithmic=True,
        ),
        graph(
            "Progress that is silent",
            prom("max(gangline_gateway_progress_silent_seconds)", "silent"),
            "Since the gateway last read progress. It grows while no job runs.",
            unit="s",
        ),
        graph(
            "Notifications",
            prom(
                "sum by (kind, outcome) (rate(gangline_notifications_total[$__rate_interval]))",
                "{{kind}}: {{outcome}}",
            ),
            "Tries to deliver alerts and news of jobs.",
            unit="cps",
        ),
    ]


def _processes() -> list[Panel]:
    return [
        graph(
            "CPU",
            prom(
                f"sum by (job) (rate(process_cpu_seconds_total{{{_OURS}}}[$__rate_interval]))",
                "{{job}}",
            ),
            "Cores that each service uses. A decider uses one at most.",
            unit="cores",
        ),
        graph(
            "Memory",
            prom(f"max by (job) (process_resident_memory_bytes{{{_OURS}}})", "{{job}}"),
            "The largest process of each service.",
            unit="bytes",
        ),
        graph(
            "Open files",
            prom(
                f"max by (job) (process_open_fds{{{_OURS}}} / process_max_fds{{{_OURS}}})",
                "{{job}}",
            ),
            "Of the files that a process may have open.",
            unit="percentunit",
            most=1,
        ),
        rows(
            "Releases",
            """SELECT part, instance, argMax(release, at) AS release, max(at) AS since FROM (
                SELECT time AS at, JSONExtractString(data, 'part') AS part,
                    JSONExtractString(data, 'instance') AS instance,
                    JSONExtractString(data, 'release') AS release FROM events
                WHERE type = 'part.announced'
            ) GROUP BY part, instance ORDER BY part, instance LIMIT 500""",
            "The release of each part, and when it last started.",
            span=12,
        ),
    ]
