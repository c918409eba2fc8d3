"""Folders of runs: kept offline, damaged, full, and uploaded later."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

import gangline
from gangline.errors import CliError, ExitCode
from gangline.sdk import connect
from gangline.tracking import spool as spools
from gangline.tracking import start, writer
from gangline.tracking.spool import Spool
from support.fakes.tracking_server import TrackingStub
from support.harnesses.cli_run import runner


def offline(**options: Any) -> Path:
    """A run of 2,500 steps in a folder."""
    with gangline.init(mode="offline", config={"lr": 0.1}, **options) as run:
        for step in range(2500):
            run.log({"loss": float(step)}, step=step)
        folder = run.folder
    assert folder is not None
    return folder


def test_an_offline_run_is_uploaded_once(
    server: TrackingStub, kept: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "notes").write_text("x")
    folder = offline(name="offline", project="sft")
    assert f"gangline sync {folder}" in capsys.readouterr().err
    assert server.requests == []
    gangline_command = runner(capsys)
    first = gangline_command("sync", str(kept), "--json")
    again = gangline_command("sync", str(folder), "--json")
    assert (first.code, again.code) == (0, 0)
    assert [line["state"] for line in first.json_lines] == ["uploaded"]
    assert first.json_lines[0]["points"] == 2500
    assert [(line["state"], line["points"]) for line in again.json_lines] == [
        ("uploaded before", 0)
    ]
    run = server.run
    assert run.steps("loss") == [(step, float(step)) for step in range(2500)]
    assert (run.params, run.info["status"]) == ({"lr": "0.1"}, "FINISHED")
    assert server.experiments == {"nlp/sft": "1"}
    removed = gangline_command("sync", str(kept), "--remove")
    assert removed.out == f"{folder.name}  uploaded before, 0 points\n  run {run.info['run_id']}\n"
    assert not folder.exists()


def test_sync_again_after_its_own_notes_are_lost(server: TrackingStub) -> None:
    folder = offline()
    with connect() as client:
        (first,) = client.sync(folder)
        (folder / "upload.json").unlink()
        (again,) = client.sync(folder)
    assert again.run_id == first.run_id
    assert len(server.run.points) == 2500


def test_sync_waits_for_a_server_and_continues_later(
    server: TrackingStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = offline()
    said: list[str] = []
    monkeypatch.setattr("gangline.tracking.sync.FIRST_RETRY_S", 0.001)
    server.stop()
    with connect() as client:
        with pytest.raises(CliError, match="nothing answers") as caught:
            list(client.sync(folder, notice=said.append))
        assert "again" in caught.value.hint
        server.start()
        (synced,) = client.sync(folder)
    assert len([line for line in said if "trying again" in line]) == 6
    assert synced.points == 2500


def test_a_running_script_s_folder_is_left_alone(
    server: TrackingStub, capsys: pytest.CaptureFixture[str]
) -> None:
    with gangline.init(mode="offline") as run:
        run.log({"loss": 1.0})
        ran = runner(capsys)("sync", str(run.folder))
    assert ran.code == ExitCode.NOT_FINISHED
    assert "1 in use by another process" in ran.err
    assert server.runs == {}


def test_no_such_folder(
    server: TrackingStub, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert runner(capsys)("sync", str(tmp_path)).code == ExitCode.USAGE
    assert "there is no folder" in runner(capsys)("sync", str(tmp_path / "none")).err
    (tmp_path / "run.json").write_text("{")
    ran = runner(capsys)("sync", str(tmp_path))
    assert (ran.code, "is no run's folder" in ran.err) == (1, True)


def test_a_torn_last_line_and_a_damaged_one(server: TrackingStub) -> None:
    folder = offline()
    (log,) = folder.glob("log.*")
    lines = log.read_bytes().splitlines(keepends=True)
    metrics = [line for line in lines if line.startswith(b"{")]
    damaged = [
        *metrics[:10],
        b'{"key":"loss","val\n',
        b"\xff\xfe[\n",
        *metrics[10:20],
        metrics[20][:-5],
    ]
    log.write_bytes(b"".join(damaged))
    said: list[str] = []
    with connect() as client:
        (synced,) = client.sync(folder, notice=said.append)
    assert synced.state == "uploaded"
    assert server.run.steps("loss") == [(step, float(step)) for step in range(20)]
    assert server.run.info["status"] == "KILLED"
    assert len(said) == 2


def test_a_line_that_is_too_long_is_skipped(
    server: TrackingStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spools, "_READ_BYTES", 100)
    monkeypatch.setattr(spools, "LONGEST_LINE", 1000)
    folder = offline()
    (log,) = folder.glob("log.*")
    metrics = [line for line in log.read_bytes().splitlines(True) if line.startswith(b"{")]
    long = b'["tags",{"a":"' + b"x" * 5000 + b'"}]\n'
    shorter = b'["tags",{"b":"' + b"x" * 500 + b'"}]\n'
    log.write_bytes(metrics[0] + long + shorter + metrics[1] + b"x" * 5000)
    said: list[str] = []
    with connect() as client:
        (synced,) = client.sync(folder, notice=said.append)
    assert (synced.points, server.run.tags["b"]) == (2, "x" * 500)
    assert "a" not in server.run.tags
    assert said == ["left out: a damaged line of the log"]


def test_segments(server: TrackingStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spools, "SEGMENT_BYTES", 10_000)
    folder = offline()
    assert len([*folder.glob("log.*")]) > 3
    with connect() as client:
        (synced,) = client.sync(folder)
    assert synced.points == 2500
    assert len(server.run.points) == 2500


def test_segments_behind_those_whose_upload_was_not_noted(
    server: TrackingStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk took no note, the segments were removed, and the process was killed."""
    monkeypatch.setattr(spools, "SEGMENT_BYTES", 10_000)
    folder = offline()
    with connect() as client:
        [*client.sync(folder)]
        noted = json.loads((folder / "upload.json").read_bytes())
        earlier = {"segment": 1, "offset": 500, "done": False}
        (folder / "upload.json").write_text(json.dumps(noted | earlier))
        for segment in (1, 2):
            (folder / f"log.{segment:05d}.jsonl").unlink()
        left = [line for path in folder.glob("log.*") for line in path.read_bytes().splitlines()]
        server.run.points.clear()
        [*client.sync(folder)]
    assert len(server.run.points) == sum(line.startswith(b"{") for line in left) > 100


def test_uploaded_segments_of_a_live_run_are_removed(
    server: TrackingStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spools, "SEGMENT_BYTES", 10_000)
    monkeypatch.setattr("gangline.tracking.live.UPLOAD_PERIOD_S", 0.02)
    with gangline.init() as run:
        for step in range(2500):
            run.log({"loss": float(step)}, step=step)
        deadline = time.monotonic() + 60
        assert run.folder is not None
        segments = run.folder.glob
        # A segment goes after its last line is counted.
        while run.progress.uploaded < 2500 or len([*segments("log.*")]) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert len([*segments("log.*")]) == 1
    assert len(server.run.points) == 2500


def test_a_full_folder_keeps_what_is_there_and_the_last_values(
    server: TrackingStub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(start, "_spool_bytes", lambda: 20_000)
    folder = offline()
    said = capsys.readouterr().err
    assert said.count("new metrics are left out") == 1
    with connect() as client:
        (synced,) = client.sync(folder)
    steps = [step for step, _ in server.run.steps("loss")]
    assert steps[:-1] == [*range(len(steps) - 1)]
    assert steps[-1] == 2499
    left_out = int(server.run.tags["sdk.dropped_points"])
    assert f"{left_out:,} points were left out" in said
    assert synced.points - 1 + left_out == 2500
    assert server.run.params == {"lr": "0.1"}


def test_a_disk_that_is_full_for_a_while(
    server: TrackingStub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, full = Spool.append, [True]
    monkeypatch.setattr(writer, "PERIOD_S", 0.01)
    monkeypatch.setattr(writer, "_RETRY_S", 0.01)

    def append(self: Spool, lines: bytes) -> None:
        if full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(self, lines)

    monkeypatch.setattr(Spool, "append", append)
    with gangline.init() as run:
        for step in range(100):
            run.log({"loss": float(step)}, step=step)
        deadline = time.monotonic() + 60
        while "No space left" not in capsys.readouterr().err and time.monotonic() < deadline:
            time.sleep(0.01)
        full[0] = False
    assert len(server.run.points) == 100


def test_memory_is_bounded(
    server: TrackingStub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(writer, "PERIOD_S", 600.0)
    monkeypatch.setattr(writer, "QUEUE_POINTS", 100)
    with gangline.init(mode="offline") as run:
        for step in range(150):
            run.log({"loss": float(step)}, step=step)
        assert (run.progress.queued, run.progress.dropped) == (100, 50)
    assert "50 points were left out" in capsys.readouterr().err
    assert run.folder is not None
    lines = [json.loads(line) for line in next(run.folder.glob("log.*")).read_text().splitlines()]
    steps = [line["step"] for line in lines if isinstance(line, dict)]
    assert steps == [*range(100), 149]


def test_folders_are_private_and_ignored_by_git(server: TrackingStub, kept: Path) -> None:
    folder = offline()
    assert folder.stat().st_mode & 0o077 == 0
    assert (folder / ".gitignore").read_text() == "*\n"


def test_a_folder_that_the_user_named_stays_as_it_was(server: TrackingStub, kept: Path) -> None:
    kept.mkdir()
    (kept / ".gitignore").write_text("build/\n")
    offline()
    with gangline.init() as run:
        run.log({"loss": 1.0})
    assert (kept / ".gitignore").read_text() == "build/\n"


def test_a_folder_from_elsewhere_uploads_none_but_its_own_files(
    server: TrackingStub, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("private")
    folder = offline()
    (folder / "files").mkdir()
    (folder / "files" / "00001").symlink_to(tmp_path / "key")
    (log,) = folder.glob("log.*")
    records = [["file", "../../../key", "a"], ["file", str(tmp_path / "key"), "b"],
               ["file", "00001", "c"]]  # fmt: skip
    log.write_text("".join(json.dumps(record) + "\n" for record in records))
    said: list[str] = []
    with connect() as client:
        (synced,) = client.sync(folder, notice=said.append)
    assert synced.state == "uploaded"
    assert [line[:11] for line in said] == ["left out: a", "left out: b", "left out: c"]
    assert not [request for request in server.requests if "artifacts" in request]


def test_a_working_directory_that_cannot_be_written(
    server: TrackingStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GANGLINE_DIR")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere"))
    (tmp_path / "gangline-offline").write_text("a file is in the way")
    folder = offline()
    assert folder.parent.parent == tmp_path / "elsewhere"


def test_a_run_that_is_refused_does_not_hold_up_those_behind_it(
    server: TrackingStub, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = offline(run_id="f" * 32)
    whole = offline(dir=kept / "others")
    (gone.parent / "a").mkdir()
    (gone.parent / "a" / "run.json").write_text("{")
    ran = runner(capsys)("sync", str(kept), str(whole))
    assert ran.code == ExitCode.TOOL_ERROR
    assert f"{whole.name}  uploaded, 2,500 points" in ran.out
    assert f"{gone}: there is no such thing" in ran.err
    assert "is no run's folder" in ran.err
    assert len(server.run.points) == 2500


def test_a_team_that_was_named_once_is_remembered(server: TrackingStub) -> None:
    server.teams = ("audio", "nlp")
    folder = offline()
    with connect() as client:
        with pytest.raises(CliError, match="several teams"):
            list(client.sync(folder))
        (first,) = client.sync(folder, team="nlp")
        (again,) = client.sync(folder)
    assert again.run_id == first.run_id


def test_a_folder_that_cannot_be_made(server: TrackingStub, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CliError, match="Not a directory") as caught:
        gangline.init(mode="offline", dir=tmp_path / "file")
    assert "dir=" in caught.value.hint
