"""The same rules for Prometheus: `python -m gangline_alerts.service.prometheus [ALERTS_FILE]`.

Prints a file of alerting rules over the gauges of the alerts service (core/policy/gauges.py), with
the thresholds of the file of alerts or the defaults. A second group is about the platform itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from gangline_alerts.core.policy.gauges import OF_RUNS
from gangline_alerts.core.policy.rules import MeasuredRule, Rules
from gangline_alerts.service.alerts_file import read_alerts
from gangline_schemas.alerts import AlertRule, Severity
from gangline_service.config_file import ConfigFileError
from gangline_service.settings import EXIT_USAGE

GUIDE = "docs/guides/alerts.md#rules"
_SUMMARIES: dict[AlertRule, str] = {
    AlertRule.CLUSTER_UTILIZATION: "{{ $value | humanizePercentage }} of the GPUs are allocated",
    AlertRule.QUEUE_WAIT: "a job of team {{ $labels.team }} waits for "
    "{{ $value | humanizeDuration }}",
    AlertRule.LOW_MFU: "job {{ $labels.job }} has an MFU of {{ $value | humanizePercentage }}",
    AlertRule.FAILED_SAVES: "{{ $value | humanizePercentage }} of the saves of a day failed",
    AlertRule.NODE_FAILURES: "{{ $value }} nodes failed in a day",
    AlertRule.FAILED_JOBS: "{{ $value | humanizePercentage }} of the jobs of a day failed",
    AlertRule.DATA_LOADING: "job {{ $labels.job }} computes in {{ $value | humanizePercentage }} "
    "of its time, and waits for data in the rest",
    AlertRule.GPU_ACTIVITY: "the GPUs of job {{ $labels.job }} are "
    "{{ $value | humanizePercentage }} busy",
    AlertRule.DATA_DRIFT: "{{ $value }} columns of newer data differ from those of model "
    "{{ $labels.model }}",
    AlertRule.DATA_AGE: "the data of model {{ $labels.model }} are {{ $value }} days older than "
    "its gate allows",
}

_PLATFORM: tuple[dict[str, Any], ...] = (
    {
        "alert": "GanglinePoisonInput",
        "expr": "sum by (service, topic) (gangline_bus_poisoned_total) > 0",
        "for": "0s",
        "labels": {"severity": Severity.CRITICAL.value},
        "annotations": {
            "summary": "{{ $labels.service }} skipped {{ $value }} inputs of {{ $labels.topic }} "
            "that it could not decide",
            "runbook": "docs/concepts/deciders.md#what-happens-to-a-bad-record",
        },
    },
)
"""A counter begins at its first event, so its value is compared and not its growth."""


def rules_file(rules: Rules) -> str:
    """The file for Prometheus, as YAML. Teams with a rule of their own have one here too."""
    found = [
        rule
        for name in AlertRule
        for level in rules.levels()
        for rule in _rules(name, level, rules)
    ]
    groups = [
        {"name": "gangline", "rules": found},
        {"name": "gangline-platform", "rules": [*_PLATFORM]},
    ]
    return yaml.safe_dump({"groups": groups}, sort_keys=False, width=100)


def _rules(name: AlertRule, level: str, general: Rules) -> Iterator[dict[str, Any]]:
    """A level of a rule, in general and for teams."""
    rules = general.levels()[level]
    field = name.value.replace("-", "_")
    own = sorted(team for team, of_team in rules.teams.items() if field in of_team.given())
    labels = {"level": level} if level else {}
    if rules.of(name).enabled:
        others = [f'team!~"{"|".join(own)}"'] if own else []
        yield _rule(name, rules, others + _of_level(name, level, general, ""), labels)
    for team in own:
        if rules.of_team(team).of(name).enabled:
            series = [f'team="{team}"', *_of_level(name, level, general, team)]
            yield _rule(name, rules.of_team(team), series, {"team": team, **labels})


def _of_level(name: AlertRule, level: str, general: Rules, team: str) -> list[str]:
    """Selects the series of a level, if levels have their own."""
    own = [each for each in general.levels() if general.has_own_jobs(name, each, team)]
    return [f'level="{level if level in own else ""}"'] if own else []


def _rule(
    name: AlertRule, rules: Rules, series: Sequence[str], labels: Mapping[str, str]
) -> dict[str, Any]:
    """`series` selects those of the teams and the level that the rule is for."""
    rule = rules.of(name)
    expression, for_s = _condition(name, rules, f"{{{','.join(series)}}}" if series else "")
    return {
        "alert": "Gangline" + "".join(map(str.capitalize, name.value.split("-"))),
        "expr": expression,
        "for": f"{for_s:g}s",
        "labels": {"severity": rule.severity.value, **labels},
        "annotations": {"summary": _SUMMARIES[name], "runbook": GUIDE},
    }


def _condition(  # noqa: PLR0911 - one for each rule
    name: AlertRule, rules: Rules, series: str
) -> tuple[str, float]:
    """The expression, and how many seconds it must hold."""
    rule = rules.of(name)
    if isinstance(rule, MeasuredRule):
        below: float = rule.below  # type: ignore[attr-defined]
        return f"{_metric(OF_RUNS[name])}{series} < {below:g}", rule.for_s
    use, wait = rules.cluster_utilization, rules.queue_wait
    saves, jobs = rules.failed_saves, rules.failed_jobs
    offered = _metric("gangline.gpus.offered")
    match name:
        case AlertRule.CLUSTER_UTILIZATION:
            share = f"{_metric('gangline.gpus.allocated')} / {offered}"
            return f"{share} < {use.below:g} and {offered} >= {use.gpus_at_least}", use.for_s
        case AlertRule.QUEUE_WAIT:
            return f"{_metric('gangline.queue.wait')}{series} > {wait.above_s:g}", 0
        case AlertRule.DATA_DRIFT:
            return f"{_metric('gangline.model.data.drift')}{series} > {rules.data_drift.above}", 0
        case AlertRule.DATA_AGE:
            overdue = _metric("gangline.model.data.overdue")
            return f"{overdue}{series} > {rules.data_age.over_days:g}", 0
        case AlertRule.FAILED_SAVES:
            return _share("gangline.day.saves", saves.above, saves.at_least), 0
        case AlertRule.FAILED_JOBS:
            return _share("gangline.day.jobs", jobs.above, jobs.at_least), 0
        case _:
            failures = _metric("gangline.day.node.failures")
            return f"{failures} > {rules.node_failures.above}", 0


def _share(name: str, above: float, at_least: int) -> str:
    metric = _metric(name)
    failed = f'sum({metric}{{outcome="failed"}})'
    return f"{failed} / sum({metric}) > {above:g} and sum({metric}) >= {at_least}"


def _metric(name: str) -> str:
    """As the exporter names it."""
    return name.replace(".", "_")


def main() -> None:
    """Print the rules of the file that is named, or the defaults."""
    rules = Rules()
    if len(sys.argv) > 1:
        try:
            rules = read_alerts(Path(sys.argv[1])).rules
        except ConfigFileError as error:
            sys.stderr.write(f"{error}\n")
            raise SystemExit(EXIT_USAGE) from None
    sys.stdout.write(rules_file(rules))


if __name__ == "__main__":
    main()
