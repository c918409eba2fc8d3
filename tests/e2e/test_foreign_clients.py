"""Other people's programs against the running platform.

Kafka's own console tools and ClickHouse's own client: nothing of Gangline's libraries is on their
side of the wire.
"""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from pathlib import Path

import clickhouse_connect
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from gangline.local.artifacts import default_cache, fetch_all, kafka_artifacts
from gangline.local.java import java_path
from gangline.local.kafka_folders import users_folder
from gangline_service.kafka_file import read_kafka_file
from support.fixtures.platform import RunningPlatform
from support.harnesses.log_watch import job_spec
from support.waiting import wait_until

TOOLS = "org.apache.kafka.tools"


def kafka_tool(name: str, *arguments: str, stdin: str = "") -> str:
    """Run one of Apache Kafka's console tools; its output."""
    jars = fetch_all(kafka_artifacts(), default_cache())
    done = subprocess.run(
        [
            str(java_path()),
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
            "-cp",
            os.pathsep.join(str(jar) for jar in jars),
            f"{TOOLS}.{name}",
            *arguments,
        ],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def submitter(platform: RunningPlatform, tmp_path: Path) -> str:
    """The file of Java's settings of a program that may submit."""
    own = read_kafka_file(users_folder(platform.data_dir / "kafka") / "submitter.toml")
    login = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{own["sasl.username"]}" password="{own["sasl.password"]}";'
    )
    lines = [
        f"security.protocol={own['security.protocol']}",
        f"sasl.mechanism={own['sasl.mechanism']}",
        f"sasl.jaas.config={login}",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={own['ssl.ca.location']}",
    ]
    file = tmp_path / "submitter.properties"
    file.write_text("\n".join(lines), encoding="utf-8")
    return str(file)


def submit_by_console(bootstrap: str, submitter: str, job_id: str, value: str) -> None:
    headers = f"ce_specversion:1.0,ce_id:{uuid.uuid4()},ce_source:/ci,ce_type:job.submitted"
    line = f"{headers},ce_subject:{job_id},content-type:application/json\t{job_id}\t{value}\n"
    kafka_tool(
        "ConsoleProducer",
        "--bootstrap-server",
        bootstrap,
        "--producer.config",
        submitter,
        "--topic",
        "gangline.requests",
        "--property",
        "parse.headers=true",
        "--property",
        "parse.key=true",
        stdin=line,
    )


def test_a_job_from_the_console_producer_runs_and_its_checkpoints_can_be_read(
    platform: RunningPlatform, submitter: str
) -> None:
    bootstrap = platform.client.bootstrap_servers
    job_id = f"foreign-{uuid.uuid4().hex[:8]}"
    value = {"job_id": job_id, "user": "ci", "spec": job_spec("foreign").data()}
    submit_by_console(bootstrap, submitter, job_id, json.dumps(value))
    with platform.watching() as watch:
        changed = watch.wait_state(job_id, "succeeded", "failed")
        assert changed.data.state == "succeeded", changed.data
        watch.settle()
        wanted = len(watch.of("checkpoint.committed", job_id))
        total = sum(seen.topic == "gangline.checkpoints" for seen in watch.seen)
    output = kafka_tool(
        "consumer.ConsoleConsumer",
        "--bootstrap-server",
        bootstrap,
        "--consumer.config",
        submitter,
        "--group",
        "gangline.submitter.console",
        "--topic",
        "gangline.checkpoints",
        "--from-beginning",
        "--isolation-level",
        "read_committed",
        "--max-messages",
        str(total),
        "--timeout-ms",
        "30000",
        "--property",
        "print.headers=true",
    )
    committed = [
        json.loads(line.split("\t")[-1])
        for line in output.splitlines()
        if "ce_type:checkpoint.committed" in line and f"ce_subject:{job_id}" in line
    ]
    assert len(committed) == wanted > 0
    assert committed[-1]["checkpoint"]["step"] == 40


def test_a_bad_job_from_the_console_producer_is_rejected_with_its_fields(
    platform: RunningPlatform, submitter: str
) -> None:
    bootstrap = platform.client.bootstrap_servers
    job_id = f"foreign-bad-{uuid.uuid4().hex[:8]}"
    spec = job_spec("foreign").data() | {"resources": {"gpus": -1}}
    submit_by_console(bootstrap, submitter, job_id, json.dumps({"job_id": job_id, "spec": spec}))
    with platform.watching() as watch:
        rejected = watch.wait_for(lambda s: s.type == "job.rejected" and s.data.job_id == job_id)
    assert rejected.envelope.subject == job_id
    assert [error.field for error in rejected.data.errors] == ["spec.resources.gpus"]


def test_the_genuine_clickhouse_client_finds_every_step_once(platform: RunningPlatform) -> None:
    with platform.watching() as watch:
        job = watch.submit("counted", hyperparameters={"steps": 30})
        assert watch.wait_state(job, "succeeded", "failed").data.state == "succeeded"
        watch.settle()
        reported = {
            (seen.data.rank, step)
            for seen in watch.of("worker.step")
            if seen.data.run_id == job
            for step in seen.data.step
        }
    port = int(platform.client.clickhouse_url.rsplit(":", 1)[1])
    client = clickhouse_connect.get_client(
        host="127.0.0.1", port=port, username="default", password=platform.client.token
    )
    query = (
        "SELECT uniqExact(rank, step), count() FROM gangline.steps "
        f"WHERE run_id = '{job}' AND name = 'step_s'"
    )

    def rows() -> list[tuple[int, int]]:
        return [(steps, number) for steps, number in client.query(query).result_rows]

    wait_until("each step in the table", lambda: rows()[0][0] == len(reported))
    assert rows() == [(len(reported), len(reported))], "rows differ from records on the bus"
    with pytest.raises(DatabaseError):
        client.command("DROP TABLE gangline.steps")
    with pytest.raises(DatabaseError):
        client.query("SELECT * FROM file('/etc/passwd', 'LineAsString')")
    client.close()
