"""Shards up and checkpoints down: every byte is verified, nothing leaves its place."""

from __future__ import annotations

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gangline_schemas.checkpoint import RankManifest, TensorSlice
from gangline_schemas.events.scheduling import CheckpointRef
from gangline_schemas.events.workers import CheckpointShardWritten, ObjectDigest
from gangline_storage.digest import digest_bytes
from gangline_storage.local import LocalStore
from gangline_worker.agent.checkpoints.integrity import CheckpointDamaged, WrongPath
from gangline_worker.agent.checkpoints.repair import Repairs
from gangline_worker.agent.checkpoints.share import Share
from gangline_worker.agent.checkpoints.transfer import FETCHES, Checkpoints
from gangline_worker.agent.decide.inputs import Prepared
from gangline_worker.agent.decide.keys import GangKey
from gangline_worker.agent.host.folders import Folders
from gangline_worker.agent.workspace.prepare import Preparer
from support.fixtures.node_checkpoints import (
    ALLOCATION,
    commit,
    node,
    rank_key,
    store,
    uploaded,
    write,
)

__all__ = ["node", "store"]


def test_a_shard_lies_in_the_store_under_the_keys_that_are_announced(
    node: Checkpoints, store: LocalStore
) -> None:
    first, _ = uploaded(node)
    prefix = "teams/nlp/checkpoints/job/attempt-0001/step-0000000005"
    assert first.manifest.key == f"{prefix}/rank-00000.json"
    assert first.shards[0].key == f"{prefix}/rank-00000.bin"
    assert store.get(first.shards[0].key) == b"bin of 0 at 5"
    assert digest_bytes(store.get(first.manifest.key)) == first.manifest.xxh3


def test_a_shard_that_is_not_what_the_rank_said_is_found(node: Checkpoints) -> None:
    ready = write(node, 0)
    (node.folder("job") / ready.shard.key).write_bytes(b"bin of 0 at 6")
    with pytest.raises(CheckpointDamaged, match=r"rank-00000\.bin"):
        node.check(rank_key(0), ALLOCATION, ready)


@pytest.mark.parametrize(
    "key",
    [
        "../../../etc/passwd",
        "/etc/passwd",
        "attempt-0001/step-0000000005/rank-00001.bin",
        "attempt-0002/step-0000000005/rank-00000.bin",
    ],
)
def test_a_rank_can_name_its_own_files_alone(node: Checkpoints, key: str) -> None:
    write(node, 1)
    ready = write(node, 0)
    other = ready.model_copy(update={"shard": ready.shard.model_copy(update={"key": key})})
    with pytest.raises(WrongPath):
        node.check(rank_key(0), ALLOCATION, other)


def test_a_link_is_not_followed(node: Checkpoints, tmp_path: Path) -> None:
    ready = write(node, 0)
    path = node.folder("job") / ready.shard.key
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    for bring in (node.check, node.upload):
        with pytest.raises(WrongPath, match="link"):
            bring(rank_key(0), ALLOCATION, ready)


def test_a_committed_checkpoint_is_fetched_whole_to_another_node(
    node: Checkpoints, store: LocalStore, tmp_path: Path
) -> None:
    ref = commit(store, uploaded(node))
    other = Checkpoints(tmp_path / "other", store, node_id="m", link=False)
    folder = other.fetch(ref, "nlp")
    assert folder == tmp_path / "other" / "job" / "attempt-0001" / "step-0000000005"
    assert sorted(path.name for path in folder.iterdir()) == [
        "COMMIT.json",
        "rank-00000.bin",
        "rank-00000.json",
        "rank-00001.bin",
        "rank-00001.json",
    ]
    assert (folder / "rank-00001.bin").read_bytes() == b"bin of 1 at 5"


class HeldStore(LocalStore):
    """Reads of the first commit record wait until `go`; `asked` counts records that were read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.go = threading.Event()
        self.asked = threading.Semaphore(0)

    def get(self, key: str) -> bytes:
        if key.endswith("COMMIT.json") and "/held-" in key:
            self.asked.release()
            assert self.go.wait(30)
        return super().get(key)


def copied(store: LocalStore, ref: CheckpointRef, job_id: str) -> CheckpointRef:
    """The same checkpoint, of another job."""
    old, new = "/checkpoints/job/", f"/checkpoints/{job_id}/"
    for found in list(store.list(ref.commit_key.rpartition("/")[0] + "/")):
        data = store.get(found.key)
        if found.key == ref.commit_key:
            data = data.replace(old.encode(), new.encode()).replace(
                b'"job_id":"job"', f'"job_id":"{job_id}"'.encode()
            )
        store.put(found.key.replace(old, new), data)
    return ref.model_copy(update={"job_id": job_id, "commit_key": ref.commit_key.replace(old, new)})


def test_a_gang_does_not_wait_for_the_checkpoint_of_another(
    node: Checkpoints, store: LocalStore, tmp_path: Path
) -> None:
    ref = commit(store, uploaded(node))
    held = HeldStore(tmp_path / "store")
    other = Checkpoints(tmp_path / "other", held, node_id="m", link=False)
    jobs = [f"held-{number}" for number in range(FETCHES)]
    refs = [copied(store, ref, job_id) for job_id in (*jobs, jobs[0])]
    with ThreadPoolExecutor(len(refs) + 1) as pool:
        waiting = [pool.submit(other.fetch, each, "nlp") for each in refs[1:FETCHES]]
        for _ in waiting:
            assert held.asked.acquire(timeout=30)
        assert (other.fetch(ref, "nlp") / "rank-00001.bin").is_file()
        waiting += [pool.submit(other.fetch, each, "nlp") for each in (refs[0], refs[-1])]
        assert held.asked.acquire(timeout=30)
        assert not held.asked.acquire(timeout=0.2), "two fetches of one job"
        held.go.set()
        assert all((done.result(30) / "rank-00001.bin").is_file() for done in waiting)


def write_real(node: Checkpoints, rank: int, *, alone: bool) -> CheckpointShardWritten:
    """A part with a manifest: 4 of a tensor's 8 rows; whether the rank needs others'."""
    ready = write(node, rank)
    manifest = RankManifest(
        job_id="job",
        attempt=1,
        step=ready.step,
        rank=rank,
        world_size=2,
        shard=ready.shard,
        tensors=(
            TensorSlice(
                name="weight", dtype="uint8", global_shape=(8,), start=(4 * rank,), shape=(4,),
                byte_offset=0, size_bytes=4,
            ),
        ),
        alone=alone,
    ).encode()  # fmt: skip
    (node.folder("job") / ready.manifest.key).write_bytes(manifest)
    told = ObjectDigest(
        key=ready.manifest.key, size_bytes=len(manifest), xxh3=digest_bytes(manifest)
    )
    return node.upload(rank_key(rank), ALLOCATION, ready.model_copy(update={"manifest": told}))


@pytest.mark.parametrize(
    ("alone", "share", "missing"),
    [
        ((True, True), Share(range(1, 2), 2), {"rank-00000.bin", "rank-00000.json"}),
        ((True, True), Share(range(2), 2), set()),
        ((True, True), None, set()),
        ((True, False), Share(range(1), 2), {"rank-00001.bin", "rank-00001.json"}),
        ((True, False), Share(range(2), 2), set()),
        ((True, False), Share(range(1, 2), 2), set()),
        ((True, True), Share(range(1, 2), 4), {"rank-00001.bin"}),  # it reads on in 1's state
        ((True, True), Share(range(3, 4), 4), {"rank-00000.bin"}),  # in that of 0
        ((True, False), Share(range(3, 4), 4), set()),
        ((True, True), Share(range(1, 2), 3), set()),  # rows 3 to 5
    ],
)
def test_of_a_checkpoint_its_ranks_files_are_brought_if_they_need_no_others(
    node: Checkpoints,
    store: LocalStore,
    tmp_path: Path,
    alone: tuple[bool, bool],
    share: Share | None,
    missing: set[str],
) -> None:
    parts = [write_real(node, rank, alone=needs) for rank, needs in enumerate(alone)]
    ref = commit(store, parts)
    other = Checkpoints(tmp_path / "other", store, node_id="m", link=False)
    folder = other.fetch(ref, "nlp", share=share)
    files = {f"rank-0000{rank}.{kind}" for rank in (0, 1) for kind in ("bin", "json")}
    assert {path.name for path in folder.iterdir()} == files - missing | {"COMMIT.json"}
    for name in missing:
        assert other.refetch(ref, "nlp", name) == ("the store", False)
        assert (folder / name).read_bytes() == store.get(f"{ref.commit_key[:-11]}{name}")


@pytest.mark.parametrize(
    ("changed", "missing"),
    [
        ({}, {"rank-00000.json", "rank-00000.bin"}),
        ({"world_size": 4}, {"rank-00001.bin"}),
        ({"job_id": "another"}, set()),  # perhaps of another strategy
    ],
)
def test_a_gang_is_prepared_with_the_files_of_what_its_ranks_hold_now(
    node: Checkpoints, store: LocalStore, tmp_path: Path, changed: dict[str, object],
    missing: set[str],
) -> None:  # fmt: skip
    ref = commit(store, [write_real(node, rank, alone=True) for rank in (0, 1)])
    second = ALLOCATION.nodes[0].model_copy(update={"gpus": (0,), "first_rank": 1})
    again = {"attempt": 2, "resume": ref, "nodes": (second,)} | changed
    resumed = ALLOCATION.model_copy(update=again)
    data = tmp_path / "other"
    other = Checkpoints(data / "checkpoints", store, node_id="m", link=False)
    (tmp_path / "sockets").mkdir(exist_ok=True)
    folders = Folders(data, tmp_path / "sockets", tmp_path / "secrets")
    (data / "work").mkdir(parents=True)
    preparer = Preparer(folders, store, other, lambda _: None)
    key = GangKey(resumed.job_id, resumed.attempt)
    workspace, answer = preparer.prepare(key, resumed, second)
    assert answer == Prepared(key)
    assert workspace is not None
    assert workspace.paths.resume is not None
    found = {path.name for path in workspace.paths.resume.glob("rank-*")}
    files = {f"rank-{rank:05d}.{kind}" for rank in (0, 1) for kind in ("bin", "json")}
    assert found == files - missing


def test_local_copies_are_used_and_those_of_another_size_replaced(
    node: Checkpoints, store: LocalStore
) -> None:
    ref = commit(store, uploaded(node))
    folder = node.folder("job") / "attempt-0001" / "step-0000000005"
    sound = (folder / "rank-00000.bin").stat().st_ino
    (folder / "rank-00001.bin").write_bytes(b"bin of 1")
    node.fetch(ref, "nlp")
    assert (folder / "rank-00000.bin").stat().st_ino == sound
    assert (folder / "rank-00001.bin").read_bytes() == b"bin of 1 at 5"


def test_a_rank_may_ask_for_each_file_that_was_not_brought(
    node: Checkpoints, store: LocalStore
) -> None:
    resumed = ALLOCATION.model_copy(update={"resume": commit(store, uploaded(node))})
    repairs = Repairs(node, lambda _rank, _text: None, lambda _: None)
    asked = [repairs.admit(rank_key(0), resumed) for _ in range(21)]
    assert asked == [True] * (16 + 2 * 2) + [False], "two ranks with a shard and a manifest each"


def test_the_last_two_steps_are_kept_on_the_disk(node: Checkpoints) -> None:
    for step in (5, 10, 15):
        uploaded(node, step)
    node.prune("job")
    left = sorted(path.name for path in (node.folder("job") / "attempt-0001").iterdir())
    assert left == ["step-0000000010", "step-0000000015"]
    node.forget("job")
    assert list(node.folder("job").iterdir()) == []


def test_a_folder_that_links_to_itself_is_a_wrong_path(node: Checkpoints) -> None:
    ready = write(node, 0)
    attempt = node.folder("job") / "attempt-0001"
    shutil.rmtree(attempt)
    attempt.symlink_to(attempt.name)
    with pytest.raises(WrongPath, match="is a link"):
        node.check(rank_key(0), ALLOCATION, ready)


def test_a_pipe_in_place_of_a_file_holds_no_thread_up(node: Checkpoints) -> None:
    ready = write(node, 0)
    shard = node.folder("job") / ready.shard.key
    shard.unlink()
    os.mkfifo(shard)
    empty = ready.shard.model_copy(update={"size_bytes": 0})
    with pytest.raises(CheckpointDamaged, match="no plain file"):
        node.check(rank_key(0), ALLOCATION, ready.model_copy(update={"shard": empty}))


@pytest.mark.parametrize("target", ["x" * 300, "attempt-0000"], ids=["too long", "itself"])
def test_old_steps_are_deleted_beside_a_link_that_leads_nowhere(
    node: Checkpoints, target: str
) -> None:
    for step in (1, 2, 3):
        write(node, 0, step)
    (node.folder("job") / "attempt-0000").symlink_to(target)
    node.prune("job")
    left = sorted(path.name for path in (node.folder("job") / "attempt-0001").iterdir())
    assert left == ["step-0000000002", "step-0000000003"]
