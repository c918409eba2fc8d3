"""The rules for Prometheus: generated, over gauges that the service has, and read by promtool."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client.exposition import generate_latest

from gangline_alerts.core.policy.rules import QueueWait, Rules
from gangline_alerts.service.measuring import MeasuredDecider
from gangline_alerts.service.prometheus import rules_file
from gangline_schemas.alerts import AlertRule
from gangline_schemas.events.registry import DataAged, DriftFound
from gangline_service.telemetry import start
from support.builders.alerts import AlertsRun

FILE = Path(__file__).parents[3] / "deploy" / "prometheus" / "gangline.rules.yaml"
POISONED = 'gangline_bus_poisoned_total{service="quota",topic="a",instance="%d"}'
PROMTOOL = shutil.which("promtool")


def test_the_file_is_generated() -> None:
    assert FILE.read_text(encoding="utf-8") == rules_file(Rules()), (
        "run: python -m gangline_alerts.service.prometheus > deploy/prometheus/gangline.rules.yaml"
    )
    found = yaml.safe_load(rules_file(Rules(queue_wait=QueueWait(enabled=False))))
    assert len(found["groups"][0]["rules"]) == len(AlertRule) - 1


def test_a_team_with_thresholds_of_its_own_has_rules_of_its_own() -> None:
    own = {"queue_wait": {"above_s": 600}, "gpu_activity": {"enabled": False}}
    rules = Rules.model_validate({"teams": {"team-a": own, "b-c": {"queue_wait": {"above_s": 9}}}})
    found = yaml.safe_load(rules_file(rules))["groups"][0]["rules"]
    assert [one["expr"] for one in found if one["alert"] == "GanglineQueueWait"] == [
        'gangline_queue_wait{team!~"b-c|team-a"} > 7200',
        'gangline_queue_wait{team="b-c"} > 9',
        'gangline_queue_wait{team="team-a"} > 600',
    ]
    assert [one["expr"] for one in found if one["alert"] == "GanglineGpuActivity"] == [
        'gangline_run_gpu_activity{team!~"team-a"} < 0.8'
    ]


def test_a_level_is_a_rule_of_its_own() -> None:
    levels = {"urgent": {"above_s": 9000, "severity": "critical"}}
    rules = Rules.model_validate({"queue_wait": {"levels": levels}})
    found = yaml.safe_load(rules_file(rules))["groups"][0]["rules"]
    waits = [one for one in found if one["alert"] == "GanglineQueueWait"]
    assert [(one["expr"], one["labels"]) for one in waits] == [
        ("gangline_queue_wait > 7200", {"severity": "warning"}),
        ("gangline_queue_wait > 9000", {"severity": "critical", "level": "urgent"}),
    ]
    assert len(found) == len(AlertRule) + 1


OTHER_JOBS = {
    "queue_wait": {
        "above_s": 600,
        "levels": {"all": {"priority_below": 90}, "late": {"above_s": 9}},
    },
    "low_mfu": {"levels": {"small": {"gpus_at_least": 8}}},
    "teams": {"nlp": {"queue_wait": {"levels": {"all": {"priority_below": 50}}}}},
}


def test_a_level_about_other_jobs_reads_series_of_its_own() -> None:
    found = yaml.safe_load(rules_file(Rules.model_validate(OTHER_JOBS)))["groups"][0]["rules"]
    names = {"GanglineQueueWait", "GanglineLowMfu"}
    assert [one["expr"] for one in found if one["alert"] in names] == [
        'gangline_queue_wait{team!~"nlp",level=""} > 600',
        'gangline_queue_wait{team="nlp"} > 600',
        'gangline_queue_wait{team!~"nlp",level="all"} > 600',
        'gangline_queue_wait{team="nlp"} > 600',
        'gangline_queue_wait{team!~"nlp",level=""} > 9',
        'gangline_run_mfu{level=""} < 0.3',
        'gangline_run_mfu{level="small"} < 0.3',
    ]


def test_a_level_about_other_jobs_has_gauges_of_its_own() -> None:
    run = AlertsRun()
    run.decider = decider = MeasuredDecider(Rules.model_validate(OTHER_JOBS))
    run.settle()
    run.node("n1")
    run.queue("a", priority=80, team="cv")
    run.queue("b", priority=80)
    run.pass_time(100, 100)
    run.queue("c", priority=0, team="cv")
    run.start("small", 8)
    run.progress("small", 0.1, mfu=0.2)
    run.tick(1)
    shown = {
        (one.name, one.labels.get("level"), one.labels["team"])
        for one in decider.newest
        if one.name in {"gangline.queue.wait", "gangline.run.mfu"}
    }
    assert shown == {
        ("gangline.queue.wait", None, "cv"), ("gangline.queue.wait", "all", "cv"),
        ("gangline.run.mfu", "small", "nlp"),
    }  # fmt: skip
    waits = {one.labels.get("level"): one.value for one in decider.newest if "wait" in one.name}
    assert waits["all"] == waits[None] + 100


OF_DATA = {
    "team": "nlp", "model": "m", "alias": "champion", "version": 1,
    "snapshot": f"news@xxh3-{0:032x}",
}  # fmt: skip


def test_each_rule_reads_gauges_that_the_service_shows() -> None:
    telemetry = start("alerts", "test")
    decider = MeasuredDecider()
    decider.export(telemetry.meter("test"))
    run = AlertsRun()
    run.decider = decider
    run.settle()
    run.node("n1")
    run.start("a")
    run.queue("b", priority=0)
    run.start("large", 128)
    run.end("c")
    for step in range(3):
        run.save("a", step)
    run.pass_time(7300, 100)
    for job_id in ("a", "large"):
        run.progress(job_id, 0.1, mfu=0.4)
    run.beat("n1", 90)
    drift = {"found": 1, "columns": [{"column": "length", "kind": "text"}]}
    run.feed(DriftFound.model_validate({**OF_DATA, **drift, "baseline": f"news@xxh3-{1:032x}"}))
    run.feed(DataAged.model_validate({**OF_DATA, "made_at": run.now, "limit_days": 1}))
    run.tick(1)
    text = generate_latest(telemetry.registry).decode()
    shown = set(re.findall(r"^(gangline_[a-z_]+)\{?", text, re.MULTILINE))
    used = set(re.findall(r"gangline_[a-z_]+", " ".join(
        one["expr"] for one in yaml.safe_load(FILE.read_text())["groups"][0]["rules"]
    )))  # fmt: skip
    assert used <= shown
    assert "gangline_alerts_held{" in text
    assert re.search(r'gangline_queue_wait\{[^}]*team="nlp"[^}]*\} 73', text)


def test_an_input_that_was_skipped_has_a_rule_that_reads_the_counter_of_each_process() -> None:
    (rule,) = yaml.safe_load(FILE.read_text())["groups"][1]["rules"]
    telemetry = start("quota", "test")
    name = "gangline.bus.poisoned"
    telemetry.meter("test").create_counter(name).add(1, {"service": "quota", "topic": "a"})
    text = generate_latest(telemetry.registry).decode()
    (counter,) = re.findall(r"gangline_\w+", rule["expr"])
    (labels,) = re.findall(rf"^{counter}\{{(.*)\}} 1", text, re.MULTILINE)
    wanted = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    assert wanted == {"service", "topic"} <= set(re.findall(r"(\w+)=", labels))
    assert rule["labels"]["severity"] == "critical"


@pytest.mark.skipif(PROMTOOL is None, reason="promtool of Debian's package prometheus")
def test_promtool_accepts_the_file_and_the_rules_fire(tmp_path: Path) -> None:
    case = {
        "rule_files": [str(FILE)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": 'gangline_queue_wait{team="nlp"}', "values": "7190 7201"},
                    {"series": 'gangline_day_jobs{outcome="failed"}', "values": "1 2"},
                    {"series": 'gangline_day_jobs{outcome="succeeded"}', "values": "30 30"},
                    {"series": POISONED % 1, "values": "_ 1"},
                    {"series": POISONED % 2, "values": "_ 2"},
                ],
                "alert_rule_test": [
                    {"eval_time": "0m", "alertname": "GanglinePoisonInput"},
                    {
                        "eval_time": "1m",
                        "alertname": "GanglinePoisonInput",
                        "exp_alerts": [
                            {
                                "exp_labels": {
                                    "severity": "critical",
                                    "service": "quota",
                                    "topic": "a",
                                },
                                "exp_annotations": {
                                    "summary": "quota skipped 3 inputs of a that it could not "
                                    "decide",
                                    "runbook": "docs/concepts/deciders.md"
                                    "#what-happens-to-a-bad-record",
                                },
                            }
                        ],
                    },
                    {"eval_time": "0m", "alertname": "GanglineQueueWait"},
                    {
                        "eval_time": "1m",
                        "alertname": "GanglineQueueWait",
                        "exp_alerts": [
                            {
                                "exp_labels": {"severity": "warning", "team": "nlp"},
                                "exp_annotations": {
                                    "summary": "a job of team nlp waits for 2h 0m 1s",
                                    "runbook": "docs/guides/alerts.md#rules",
                                },
                            }
                        ],
                    },
                    {"eval_time": "0m", "alertname": "GanglineFailedJobs"},
                    {
                        "eval_time": "1m",
                        "alertname": "GanglineFailedJobs",
                        "exp_alerts": [
                            {
                                "exp_labels": {"severity": "warning"},
                                "exp_annotations": {
                                    "summary": "6.25% of the jobs of a day failed",
                                    "runbook": "docs/guides/alerts.md#rules",
                                },
                            }
                        ],
                    },
                ],
            }
        ],
    }
    path = tmp_path / "case.yaml"
    path.write_text(yaml.safe_dump(case))
    for arguments in (["check", "rules", str(FILE)], ["test", "rules", str(path)]):
        done = subprocess.run(
            [str(PROMTOOL), *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
