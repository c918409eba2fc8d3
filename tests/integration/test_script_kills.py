"""Scripts that are killed at any moment, while the server comes and goes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gangline.sdk import connect
from gangline.tracking import sync
from support.fakes.tracking_server import TOKEN, TrackingStub
from support.fixtures.tracking import kept, server
from support.waiting import wait_until

__all__ = ["kept", "server"]  # fixtures are used by being in this module

SCRIPT = """
import time
import gangline
from gangline.tracking import live, writer

live.UPLOAD_PERIOD_S = live.FIRST_RETRY_S = live.LONGEST_RETRY_S = 0.02
writer.PERIOD_S = 0.01
run = gangline.init(config={"lr": 0.1})
for step in range(1_000_000):
    run.log({"loss": float(step)}, step=step)
    if step % 50 == 0:
        while run.progress.queued:
            time.sleep(0.001)
        print(step, flush=True)
"""
KILLS = 3


@pytest.mark.parametrize("seed", range(KILLS))
def test_points_on_disk_arrive_once_and_in_order(
    server: TrackingStub, kept: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "FIRST_RETRY_S", 0.1)
    draw = random.Random(seed)
    lines, outage = draw.randrange(1, 60), draw.randrange(1, 60)
    environment = {**os.environ, "GANGLINE_URL": server.url, "GANGLINE_TOKEN": TOKEN}
    script = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert script.stdout is not None
    written = -1
    for number in range(lines):
        written = int(script.stdout.readline())
        if number == outage:
            server.lose = draw.randrange(3)
            server.stop()
            threading.Timer(0.2, server.start).start()
    time.sleep(draw.random() * 0.02)
    script.send_signal(signal.SIGKILL)
    script.wait()
    script.stdout.close()
    with connect() as client:
        (synced,) = client.sync(kept)
        (again,) = client.sync(kept)
    assert (synced.state, again.state) == ("uploaded", "uploaded before")
    stored = server.run
    steps = [step for step, _ in stored.steps("loss")]
    assert steps == [*range(len(steps))]
    assert steps[-1] >= written
    assert (stored.params, stored.info["status"]) == ({"lr": "0.1"}, "KILLED")


WAITING = """
import sys
import gangline

with gangline.init() as run:
    sys.stdin.readline()
    run.log({"loss": 1.0})
    run.finish(timeout_s=600)
"""


def test_ctrl_c_ends_the_wait_for_the_server(server: TrackingStub, kept: Path) -> None:
    environment = {**os.environ, "GANGLINE_URL": server.url, "GANGLINE_TOKEN": TOKEN}
    script = subprocess.Popen(
        [sys.executable, "-c", WAITING],
        env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert script.stdin is not None
    assert script.stderr is not None
    assert "run " in script.stderr.readline()
    server.stop()
    script.stdin.write("\n")
    script.stdin.flush()
    assert "nothing answers" in script.stderr.readline()
    wait_until("it waits", lambda: '"FINISHED"' in text(kept))
    script.send_signal(signal.SIGINT)
    said = script.stderr.read()
    assert script.wait() != 0
    script.stdin.close()
    script.stderr.close()
    assert "not all is uploaded" in said
    server.start()
    with connect() as client:
        (synced,) = client.sync(kept)
    assert synced.points == 1
    assert server.run.steps("loss") == [(0, 1.0)]


def text(kept: Path) -> str:
    """All that folders of runs have so far."""
    files = [file for file in kept.rglob("*") if file.is_file()]
    return "".join(file.read_text(encoding="utf-8", errors="replace") for file in files)


LOGGING = """
import os, signal, sys, time
import gangline
run = gangline.init(mode=sys.argv[1])
for step in range(300):
    run.log({"loss": float(step)}, step=step)
while run.progress.queued:
    time.sleep(0.01)
print(run.folder, flush=True)
END
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)"


def script(
    server: TrackingStub, kept: Path, mode: str, end: str
) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ, "GANGLINE_URL": server.url, "GANGLINE_TOKEN": TOKEN,
        "GANGLINE_DIR": str(kept),
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", LOGGING.replace("END", end), mode],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["offline", "online"])
def test_a_killed_script(server: TrackingStub, kept: Path, mode: str) -> None:
    ended = script(server, kept, mode, KILL)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    with connect() as client:
        (synced,) = client.sync(kept)
    assert synced.state == "uploaded"
    assert server.run.steps("loss") == [(step, float(step)) for step in range(300)]
    assert server.run.info["status"] == "KILLED"


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("", "FINISHED"),
        ("raise ValueError", "FAILED"),
        ("raise KeyboardInterrupt", "KILLED"),
        ("sys.exit(0)", "FINISHED"),
    ],
)
def test_a_script_without_finish(server: TrackingStub, kept: Path, end: str, status: str) -> None:
    ended = script(server, kept, "online", end)
    assert server.run.info["status"] == status, ended.stderr
    assert len(server.run.points) == 300
