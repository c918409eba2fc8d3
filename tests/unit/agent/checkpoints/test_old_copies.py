"""What jobs left on a node's disk is deleted once it was unused for long."""

from __future__ import annotations

import os
import time
from pathlib import Path

from gangline_storage.local import LocalStore
from gangline_worker.agent.checkpoints.old_copies import KEPT_S, delete_unused, note_use
from gangline_worker.agent.checkpoints.transfer import Checkpoints
from gangline_worker.agent.decide.inputs import Prepared
from gangline_worker.agent.decide.keys import GangKey
from gangline_worker.agent.host.folders import Folders
from gangline_worker.agent.workspace.prepare import Preparer
from support.builders.agent_core import allocation

NOW_S = time.time()
OLD_S = NOW_S - KEPT_S - 1


def copies(data: Path, job_id: str, used_s: float) -> Path:
    """A job's folder with one checkpoint, all of it last used then; gives the attempt's."""
    attempt = data / "checkpoints" / job_id / "attempt-0001"
    step = attempt / "step-0000000010"
    step.mkdir(parents=True)
    (step / "rank-00000.bin").write_bytes(b"weights")
    for path in (step, attempt, attempt.parent):
        os.utime(path, (used_s, used_s))
    return attempt


def bundle(data: Path, name: str, used_s: float) -> Path:
    path = data / "bundles" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"code")
    os.utime(path, (used_s, used_s))
    return path


def test_what_was_not_used_for_long_goes_and_nothing_else(tmp_path: Path) -> None:
    delete_unused(tmp_path, NOW_S)  # of a node that never ran anything
    old, new, saves, starts = (copies(tmp_path, name, OLD_S) for name in "abcd")
    os.utime(new.parent, (NOW_S, NOW_S))
    os.utime(saves, (NOW_S - 60, NOW_S - 60))  # as a new step below it does
    note_use(starts.parent, tmp_path / "checkpoints" / "never-here")
    elsewhere = copies(tmp_path / "other", "e", OLD_S)
    (old.parent / "link").symlink_to(elsewhere)
    stale, fresh = bundle(tmp_path, "stale", OLD_S), bundle(tmp_path, "fresh", NOW_S)
    os.utime(old.parent, (OLD_S, OLD_S))
    os.utime(old.parent / "link", (OLD_S, OLD_S), follow_symlinks=False)

    delete_unused(tmp_path, NOW_S)

    assert not old.exists()
    assert old.parent.exists(), "a rank that runs may save there"
    assert (elsewhere / "step-0000000010" / "rank-00000.bin").exists()
    assert all(kept.exists() for kept in (new, saves, starts, fresh))
    assert not stale.exists()
    os.utime(old.parent, (OLD_S, OLD_S))
    delete_unused(tmp_path, NOW_S, idle=True)
    assert not old.parent.exists()
    assert all(kept.exists() for kept in (elsewhere, new, saves, starts, fresh))


def test_room_is_made_but_not_of_what_a_gang_was_prepared_with(tmp_path: Path) -> None:
    long_ago_s = time.time() - KEPT_S - 3600
    old, own = (copies(tmp_path, name, long_ago_s) for name in ("another", "job"))
    stale = bundle(tmp_path, "stale", long_ago_s)
    store = LocalStore(tmp_path / "store")
    checkpoints = Checkpoints(tmp_path / "checkpoints", store, node_id="node-0", link=False)
    (tmp_path / "sockets").mkdir(exist_ok=True)
    folders = Folders(tmp_path, tmp_path / "sockets", tmp_path / "secrets")
    preparer = Preparer(folders, store, checkpoints, lambda _: None)
    gang = allocation()
    assert gang.job_id == "job"
    key = GangKey(gang.job_id, gang.attempt)
    _, answer = preparer.prepare(key, gang, gang.nodes[0])
    assert answer == Prepared(key)
    preparer.make_room(())
    assert own.exists()
    assert not old.exists()
    assert not stale.exists()
    os.utime(own, (long_ago_s, long_ago_s))
    os.utime(own.parent, (long_ago_s, long_ago_s))  # a job that runs for days and saves nothing
    preparer.make_room({"job"})
    assert own.exists()
    os.utime(own.parent, (long_ago_s, long_ago_s))
    preparer.make_room(())
    assert not own.exists()


def test_a_program_cannot_set_the_time_until_which_its_copies_stay(tmp_path: Path) -> None:
    attempt = tmp_path / "checkpoints" / "job" / "attempt-0001"
    attempt.mkdir(parents=True)
    now_s = time.time()
    for folder in (attempt.parent, attempt):
        os.utime(folder, (now_s * 2, now_s * 2))
    delete_unused(tmp_path, now_s + KEPT_S + 60.0)
    assert not attempt.exists()
