"""A planted secret is looked for in every file, topic, table and answer, and is nowhere."""

from __future__ import annotations

import hashlib
import json
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gangline_bus.ports import OutRecord
from gangline_console.pages.job.tabs import TABS
from gangline_schemas.catalog import Topic
from gangline_schemas.events.requests import JobSubmitted
from gangline_schemas.secrets import REDACTED
from support.builders.held_job import plain_spec
from support.fixtures.platform import RunningPlatform
from support.harnesses import leak_search
from support.harnesses.log_watch import DEADLINE_S, LogWatch

_TALKATIVE = """
import hashlib, os, sys
from gangline_worker import flush, report
secret = os.environ["PLANTED"]
print("sha256", hashlib.sha256(secret.encode()).hexdigest())
print("on stdout:", secret, flush=True)
print("x" * 16_380 + secret, flush=True)
sys.stderr.write("on stderr: " + secret + chr(10))
report({"loss": 1.0, secret: 2.0, "loss/" + secret: 3.0}, 1)
flush()
if sys.argv[1] == "raise":
    raise RuntimeError("cannot log in with " + secret)
sys.exit("bye, " + secret)
"""


@pytest.fixture
def secret(platform: RunningPlatform) -> Iterator[Path]:
    """A named secret of team default, in no known credential format."""
    folder = platform.data_dir / "secrets" / "default"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "PLANTED"
    path.touch(mode=0o600)
    path.write_text(f"zq{uuid.uuid4().hex}plum\n")
    yield path
    path.unlink()


def rest_paths(job_id: str) -> list[str]:
    job = f"/v1/training-jobs/{job_id}"
    return [
        "/v1/training-jobs",
        job,
        f"{job}/explain",
        f"{job}/logs",
        f"{job}/events",
        f"{job}/checkpoints",
        "/v1/runs",
        f"/training-runs/{job_id}/metrics",
        "/v1/queue",
        "/v1/nodes",
        "/v1/teams",
    ]


def page_paths(job_id: str) -> list[str]:
    """Pages of the console that show something of a job."""
    tabs = (f"/console/jobs/{job_id}?tab={tab}" for tab in TABS)
    return [*tabs, "/console/runs", "/console/runs.csv", f"/console/incidents/{job_id}/1"]


def wait_rows(platform: RunningPlatform, job_id: str, tables: set[str]) -> None:
    """Until ClickHouse has rows of the job in these tables; it finds what is there to find."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        found = {
            place.split(".")[0] for place in leak_search.in_clickhouse(platform.client, job_id)
        }
        if tables <= found:
            return
    raise AssertionError(f"rows of {job_id} did not come")


def wait_line(watch: LogWatch, job_id: str, text: str) -> None:
    """Logs and exits are on different topics: a line may come after its rank's exit."""
    watch.wait_for(
        lambda s: (
            s.type == "worker.log"
            and s.data.job_id == job_id
            and text in [line.text for line in s.data.lines]
        )
    )


def submit(watch: LogWatch, name: str, **fields: Any) -> str:
    job_id = f"{name}-{uuid.uuid4().hex[:8]}"
    spec = plain_spec(name, "default", 1, **fields)
    watch.publish(JobSubmitted(job_id=job_id, spec=spec), job_id)
    return job_id


def test_a_named_secret_reaches_its_job_and_nothing_else(
    platform: RunningPlatform, watch: LogWatch, secret: Path
) -> None:
    value = secret.read_text().strip()
    jobs = [
        submit(
            watch, f"tells-by-{end}", command=["python", "-c", _TALKATIVE, end], secrets=["PLANTED"]
        )
        for end in ("raise", "exit")
    ]
    for job, words in zip(jobs, ("cannot log in with", "bye,"), strict=True):
        assert watch.wait_state(job, "succeeded", "failed").data.state == "failed"
        (exited,) = watch.of("worker.exited", job)
        assert f"{words} {REDACTED}" in exited.data.message
    for job in jobs:
        for line in (
            f"sha256 {hashlib.sha256(value.encode()).hexdigest()}",
            f"on stdout: {REDACTED}",
            f"on stderr: {REDACTED}",
        ):
            wait_line(watch, job, line)
        wait_rows(platform, job, {"logs", "events", "runs", "steps"})
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    # The search itself finds what is there: the secret's file, and the job by its id.
    assert leak_search.in_files(platform.data_dir, value) == [secret]
    assert leak_search.in_topics(platform.kafka, jobs[0]) >= {Topic.LOGS.value}
    assert leak_search.in_answers(platform.client, ["/v1/training-jobs"], jobs[0])
    # And the secret is nowhere else.
    assert leak_search.in_topics(platform.kafka, value) == set()
    assert leak_search.in_clickhouse(platform.client, value) == []
    assert leak_search.at_endpoints(platform.data_dir, value) == []
    for job in jobs:
        paths = [*rest_paths(job), *page_paths(job)]
        assert leak_search.in_answers(platform.client, paths, value) == []


def test_a_secret_file_that_others_may_read_is_not_used(watch: LogWatch, secret: Path) -> None:
    secret.chmod(0o640)
    job = submit(watch, "careless", run="true", secrets=["PLANTED"])
    changed = watch.wait_state(job, "succeeded", "failed").data
    assert changed.state == "failed"
    assert "PLANTED of team default is readable by others; its file must be 0600" in changed.reason
    assert not watch.of("worker.started", job)


def planted(marker: str) -> dict[str, dict[str, Any]]:
    """Specs with a secret where none belongs, by the field that the answer must name."""
    token = f"hf_{marker}{marker}"
    fields: dict[str, dict[str, Any]] = {
        "env": {"run": "true", "env": {"HF_TOKEN": marker}},
        "env by value": {"run": "true", "env": {"GREETING": token}},
        "command": {"command": ["python", "train.py", f"--token={token}"]},
        "run": {"run": f"TOKEN={token} python train.py"},
        "hyperparameters": {"run": "true", "hyperparameters": {"login": token}},
        "secrets": {"run": "true", "secrets": [token]},
    }
    bare = plain_spec("leaky", "default", 1, run="true").data()
    del bare["run"]
    return {what: bare | more for what, more in fields.items()}


def refused_by_rest(platform: RunningPlatform, marker: str) -> None:
    for what, spec in planted(marker).items():
        answer = httpx.post(
            f"{platform.client.url}/v1/training-jobs",
            json=spec,
            headers={"Authorization": f"Bearer {platform.client.token}"},
            timeout=30,
        )
        assert answer.status_code == 422, (what, answer.text)
        assert what.split()[0] in answer.text, answer.text
        assert marker not in answer.text + str(answer.headers)


def rejected_on_the_bus(watch: LogWatch, marker: str) -> list[str]:
    """Ids of jobs that another writer published."""
    writer = watch.bus.writer()
    jobs = {}
    for index, (what, spec) in enumerate(planted(marker).items()):
        job_id = jobs[what] = f"leaky-{index}-{uuid.uuid4().hex[:8]}"
        attributes = {"id": str(uuid.uuid4()), "type": "job.submitted", "subject": job_id}
        headers = {"specversion": "1.0", "source": "/ci", **attributes}
        writer.send(
            OutRecord(
                Topic.REQUESTS.value,
                job_id.encode(),
                json.dumps({"job_id": job_id, "spec": spec}).encode(),
                tuple((f"ce_{name}", value.encode()) for name, value in headers.items()),
            )
        )
    assert writer.flush(30) == 0
    writer.close()
    for what, job_id in jobs.items():
        rejected = watch.wait_for(
            lambda s, job_id=job_id: s.type == "job.rejected" and s.data.job_id == job_id
        )
        assert what.split()[0] in rejected.data.reason
    return [*jobs.values()]


def test_a_secret_in_a_spec_is_refused_and_no_service_repeats_it(
    platform: RunningPlatform, watch: LogWatch
) -> None:
    """Only another writer's text is on the bus, in its own message, until that expires."""
    marker = uuid.uuid4().hex
    refused_by_rest(platform, f"{marker}rest")
    jobs = rejected_on_the_bus(watch, marker)
    wait_rows(platform, jobs[-1], {"events"})  # the last one: its log is read in order
    assert leak_search.in_topics(platform.kafka, marker) == {Topic.REQUESTS.value}
    assert leak_search.in_topics(platform.kafka, f"{marker}rest") == set()
    segments = platform.data_dir / "kafka"
    outside = leak_search.in_files(platform.data_dir, marker)
    assert [path for path in outside if not path.is_relative_to(segments)] == []
    assert leak_search.in_clickhouse(platform.client, marker) == []
    assert leak_search.at_endpoints(platform.data_dir, marker) == []
    paths = ["/v1/training-jobs", "/v1/runs", *(f"/v1/training-jobs/{job}" for job in jobs)]
    assert leak_search.in_answers(platform.client, paths, marker) == []
