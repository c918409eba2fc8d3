"""A frozen leader: the standby decides, the job goes on, the leader comes back as nobody."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from pathlib import Path

from gangline.local.platform import Platform
from log_watch import DEADLINE_S, PACED, LogWatch
from platform_fixture import start_platform


def role(data_dir: Path, name: str) -> str:
    """What a scheduler says of itself: `leads shard 0` or `standby`."""
    bound = json.loads((data_dir / "run" / "health" / f"{name}.json").read_text())
    with urllib.request.urlopen(f"{bound['url']}/readyz", timeout=5) as answer:
        checks = json.load(answer)["checks"]
    return next(check["detail"] for check in checks if check["name"] == "role")


def pid_of(platform: Platform, name: str) -> int:
    (row,) = [row for row in platform.supervisor.status() if row.name == name]
    assert row.pid is not None
    return row.pid


def test_the_standby_takes_over_from_a_frozen_leader(tmp_path: Path) -> None:
    platform, _ = start_platform(tmp_path, nodes=1, schedulers=2, live_view=False)
    with platform:
        client = platform.start()
        names = ["scheduler-0", "scheduler-1"]
        roles = {name: role(tmp_path, name) for name in names}
        assert sorted(roles.values()) == ["leads shard 0", "standby"]
        leader = next(name for name in names if roles[name] != "standby")
        frozen = pid_of(platform, leader)
        with LogWatch(client.bootstrap_servers) as watch:
            running = watch.submit(
                "goes-on", command=PACED, resources={"gpus": 1}, hyperparameters={"steps": 300}
            )
            watch.wait_step(running, 3)
            os.kill(frozen, signal.SIGSTOP)
            submitted = watch.submit(
                "starts", command=["true"], resources={"gpus": 1}, hyperparameters={}
            )
            began = watch.wait_for(
                lambda s: s.type == "gang.allocated" and s.data.job_id == submitted
            )
            assert began.envelope.position is not None
            assert began.envelope.position.writer_epoch > 1, "the frozen leader decided"
            os.kill(frozen, signal.SIGCONT)
            deadline = time.monotonic() + DEADLINE_S
            while pid_of_or_none(platform, leader) == frozen:
                assert time.monotonic() < deadline, "the old leader lives on"
                time.sleep(0.1)
            watch.wait_state(submitted, "succeeded")
            assert watch.wait_state(running, "succeeded", "failed").data.state == "succeeded"
            assert len(watch.of("gang.allocated", running)) == 1, "the running job noticed"
            watch.assert_sound()


def pid_of_or_none(platform: Platform, name: str) -> int | None:
    return next(row.pid for row in platform.supervisor.status() if row.name == name)
