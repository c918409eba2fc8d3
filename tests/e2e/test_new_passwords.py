"""New passwords and a new certificate of Kafka, on a secure platform while a job trains."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.local.kafka_folders import secure_folder
from gangline.local.kafka_renewal import shown
from support.fixtures.platform import RunningPlatform, start_platform
from support.harnesses.cli_run import runner
from support.waiting import wait_until
from upgrade.jobs import Jobs

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

CONNECTED = {"tracker-0", "gateway-0", "node-0", "node-1"}
"""They connect again to a broker that was away; services that decide start again."""
LIVE_VIEW = "live-view-0"


@pytest.fixture
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    data_dir = tmp_path_factory.mktemp("secure")
    running, _ = start_platform(data_dir, secure=True, tls=True, ready_timeout_s=300.0)
    with running:
        platform = RunningPlatform(running, running.start(), data_dir)
        yield platform
        platform.close()


def restarts(platform: RunningPlatform) -> Counter[str]:
    """How often each process was restarted since the start of the platform."""
    return Counter({row.name: row.restarts for row in platform.platform.supervisor.status()})


def took_a_new_password(platform: RunningPlatform, name: str) -> bool:
    """Whether Kafka refused its old password, and it read the new one."""
    log = platform.data_dir / "logs" / f"{name}.log"
    return "kafka.new_password" in log.read_text(encoding="utf-8", errors="replace")


def test_a_job_of_two_ranks_loses_no_step_while_passwords_and_the_certificate_change(
    secure: RunningPlatform, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The commands alone close no connection. So the broker is killed afterwards.

    Then each part must show its new password, and check the new certificate.
    """
    gangline, at = runner(capsys), ("--data-dir", str(secure.data_dir))
    port = int(secure.client.bootstrap_servers.split(":")[1])
    authority = secure_folder(secure.data_dir / "kafka") / "ca.pem"
    certificate = shown(port, authority)
    with secure.watching() as watch:
        jobs = Jobs(watch, secure.client, tmp_path / "until")
        jobs.begin(1)
        before = restarts(secure)
        for command in (("users", "rotate", "all"), ("renew",)):
            ran = gangline("kafka", *command, *at)
            assert ran.code == 0, ran.err
        assert shown(port, authority) != certificate
        jobs.short("rotated")
        assert set(restarts(secure) - before) <= {LIVE_VIEW}

        os.kill(secure.pid("kafka"), signal.SIGKILL)
        wait_until(
            "new passwords",
            lambda: all(took_a_new_password(secure, name) for name in CONNECTED),
        )
        jobs.short("connected-again")
        jobs.end()
        assert jobs.lost == []
        assert watch.dead_letters() == {}
        watch.assert_sound()
        print(f"{sum(jobs.steps.values())} steps of {len(jobs.steps)} jobs")
        assert not set(restarts(secure) - before) & CONNECTED
        assert secure.denied() == []
