"""What jobs have read of data in stores stays on the node, as long as the disk has room."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gangline_storage.local import LocalStore
from gangline_worker.agent.checkpoints.transfer import Checkpoints
from gangline_worker.agent.decide.keys import GangKey
from gangline_worker.agent.host.folders import Folders
from gangline_worker.agent.workspace.data_caches import DataCaches
from gangline_worker.agent.workspace.environment import rank_environment
from gangline_worker.agent.workspace.prepare import Preparer
from gangline_worker.data.opening import ReadSettings
from support.builders.checkpoints import allocated


def test_the_next_attempt_has_what_this_one_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path / "store")
    (tmp_path / "sockets").mkdir(exist_ok=True)
    folders = Folders(tmp_path / "data", tmp_path / "sockets", tmp_path / "secrets")
    checkpoints = Checkpoints(tmp_path / "data/checkpoints", store, node_id="n", link=False)
    preparer = Preparer(folders, store, checkpoints, lambda _: None)
    found = []
    for attempt in (1, 2):
        key, given = GangKey("job-1", attempt), allocated()
        workspace, _ = preparer.prepare(key, given, given.nodes[0])
        assert workspace is not None
        said = rank_environment(
            given, given.nodes[0], 0, workspace.paths, gpus="", token="t", secrets={}
        )
        monkeypatch.setenv("GANGLINE_DATA_CACHE", said["GANGLINE_DATA_CACHE"])
        with ReadSettings().cache_folder().file("0" * 32, "shard-000000.tok", 100) as file:
            found.append(file.read())
            Path(str(file.name)).write_bytes(b"x" * 100)
        preparer.clear(key)
    assert found == [bytes(100), b"x" * 100]


def cached(caches: DataCaches, team: str, name: str, used_at: int) -> Path:
    path = caches.of(team, None) / "digest" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(1 << 20))
    os.utime(path, (used_at, used_at))
    return path


def test_what_was_not_used_for_the_longest_goes_when_the_disk_is_short_of_room(
    tmp_path: Path,
) -> None:
    free = [1 << 30]
    caches = DataCaches(tmp_path / "caches", lambda _: (10 << 30, free[0]))
    old = cached(caches, "vision", "a", 1)
    files = [cached(caches, "nlp", "b", 2), cached(caches, "nlp", "c", 3), old]
    caches.of("nlp", None)
    assert all(path.exists() for path in files)
    free[0] -= (1 << 20) + 1  # one file is not enough
    caches.of("nlp", None)
    assert [path.exists() for path in files] == [False, True, False]


def test_no_name_in_it_leads_the_agent_elsewhere(tmp_path: Path) -> None:
    caches = DataCaches(tmp_path / "caches", lambda _: (10 << 30, 0))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_bytes(b"x")
    folder = caches.of("nlp", None)
    (folder / "digest").mkdir()
    (folder / "digest" / "link").symlink_to(elsewhere / "kept")
    (folder / "linked").symlink_to(elsewhere)
    caches.of("nlp", None)
    assert not (folder / "digest" / "link").is_symlink()
    assert (elsewhere / "kept").exists()
