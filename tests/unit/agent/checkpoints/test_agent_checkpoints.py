"""Shards up and checkpoints down: every byte is verified, nothing leaves its place."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gangline_schemas.checkpoint import (
    CommitRecord,
    RankManifest,
    TensorSlice,
    commit_key,
    job_prefix,
)
from gangline_schemas.events.scheduling import (
    CheckpointRef,
    GangAllocated,
    NodeAssignment,
    Rendezvous,
)
from gangline_schemas.events.workers import CheckpointShardWritten, ObjectDigest
from gangline_schemas.job import JobSpec
from gangline_schemas.rank_protocol import CopyDamaged, CopyReplaced, ShardReady
from gangline_storage.digest import digest_bytes
from gangline_storage.local import LocalStore
from gangline_worker.agent.checkpoints.integrity import CheckpointDamaged, WrongPath
from gangline_worker.agent.checkpoints.repair import Repairs
from gangline_worker.agent.checkpoints.share import Share
from gangline_worker.agent.checkpoints.transfer import Checkpoints
from gangline_worker.agent.decide.inputs import NoSoundCopy, Prepared
from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.agent.host.folders import Folders
from gangline_worker.agent.workspace.prepare import Preparer

SPEC = JobSpec.model_validate({"name": "j", "team": "nlp", "resources": {"gpus": 1}, "run": "true"})
ALLOCATION = GangAllocated(
    job_id="job",
    attempt=1,
    team="nlp",
    world_size=2,
    nodes=(
        NodeAssignment(
            node_id="n", incarnation="i", address="127.0.0.1", gpus=(0, 1), first_rank=0
        ),
    ),
    rendezvous=Rendezvous(address="127.0.0.1", port=21000),
    spec=SPEC,
)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def node(tmp_path: Path, store: LocalStore) -> Checkpoints:
    return Checkpoints(tmp_path / "node", store, node_id="n", link=False)


def rank_key(rank: int) -> RankKey:
    return RankKey(GangKey("job", 1), rank)


def write(node: Checkpoints, rank: int, step: int = 5) -> ShardReady:
    """What a rank leaves on the disk and says of it."""
    folder = f"attempt-0001/step-{step:010d}"
    root = node.folder("job")
    (root / folder).mkdir(parents=True, exist_ok=True)
    digests = []
    for suffix in ("json", "bin"):
        name = f"{folder}/rank-{rank:05d}.{suffix}"
        data = f"{suffix} of {rank} at {step}".encode()
        (root / name).write_bytes(data)
        digests.append(ObjectDigest(key=name, size_bytes=len(data), xxh3=digest_bytes(data)))
    return ShardReady(step=step, rank=rank, world_size=2, manifest=digests[0], shard=digests[1])


def commit(store: LocalStore, parts: list[CheckpointShardWritten]) -> CheckpointRef:
    """What the checkpoint service does."""
    key = commit_key(job_prefix("nlp", "job", SPEC), 1, parts[0].step)
    record = CommitRecord(
        job_id="job",
        attempt=1,
        step=parts[0].step,
        world_size=2,
        manifests=tuple(part.manifest for part in parts),
        shards=tuple(part.shards[0] for part in parts),
        committed_at=datetime(2026, 11, 1, tzinfo=UTC),
    )
    store.put(key, record.encode())
    return CheckpointRef(job_id="job", attempt=1, step=parts[0].step, world_size=2, commit_key=key)


def uploaded(node: Checkpoints, step: int = 5) -> list[CheckpointShardWritten]:
    return [node.upload(rank_key(rank), ALLOCATION, write(node, rank, step)) for rank in (0, 1)]


def test_a_shard_lies_in_the_store_under_the_keys_that_are_announced(
    node: Checkpoints, store: LocalStore
):
    first, _ = uploaded(node)
    prefix = "teams/nlp/checkpoints/job/attempt-0001/step-0000000005"
    assert first.manifest.key == f"{prefix}/rank-00000.json"
    assert first.shards[0].key == f"{prefix}/rank-00000.bin"
    assert store.get(first.shards[0].key) == b"bin of 0 at 5"
    assert digest_bytes(store.get(first.manifest.key)) == first.manifest.xxh3


def test_a_shard_that_is_not_what_the_rank_said_is_found(node: Checkpoints):
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
def test_a_rank_can_name_its_own_files_alone(node: Checkpoints, key: str):
    write(node, 1)
    ready = write(node, 0)
    other = ready.model_copy(update={"shard": ready.shard.model_copy(update={"key": key})})
    with pytest.raises(WrongPath):
        node.check(rank_key(0), ALLOCATION, other)


def test_a_link_is_not_followed(node: Checkpoints, tmp_path: Path):
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
):
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
):
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
):  # fmt: skip
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
):
    ref = commit(store, uploaded(node))
    folder = node.folder("job") / "attempt-0001" / "step-0000000005"
    sound = (folder / "rank-00000.bin").stat().st_ino
    (folder / "rank-00001.bin").write_bytes(b"bin of 1")
    node.fetch(ref, "nlp")
    assert (folder / "rank-00000.bin").stat().st_ino == sound
    assert (folder / "rank-00001.bin").read_bytes() == b"bin of 1 at 5"


def test_a_damaged_object_in_the_store_is_named(
    node: Checkpoints, store: LocalStore, tmp_path: Path
):
    parts = uploaded(node)
    ref = commit(store, parts)
    key = parts[1].shards[0].key
    store.put(key, b"bin of 1 at 6")
    other = Checkpoints(tmp_path / "other", store, node_id="m", link=False)
    with pytest.raises(CheckpointDamaged, match=r"rank-00001\.bin") as flipped:
        other.fetch(ref, "nlp")
    store.delete(key)
    with pytest.raises(CheckpointDamaged, match="is missing") as missing:
        other.fetch(ref, "nlp")
    assert flipped.value.key == missing.value.key == key


def break_file(path: Path, how: str) -> None:
    """Flip a bit, cut the last byte off, or delete the file."""
    raw = bytearray(path.read_bytes())
    raw[3] ^= 4
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(raw if how == "flip" else raw[:-1])


@pytest.mark.parametrize("how", ["flip", "truncate", "missing"])
@pytest.mark.parametrize("file", ["rank-00001.bin", "rank-00000.json", "COMMIT.json"])
def test_a_damaged_local_file_comes_again_from_the_store_and_is_told(
    node: Checkpoints, store: LocalStore, file: str, how: str
):
    ref = commit(store, uploaded(node))
    folder = node.fetch(ref, "nlp")
    sound = (folder / file).read_bytes()
    for bring in (node.fetch, lambda ref, team: node.refetch(ref, team, file)):
        break_file(folder / file, how)
        if bring == node.fetch and file.endswith(".bin") and how == "flip":
            bring(ref, "nlp")
            assert (folder / file).read_bytes() != sound, "the rank that reads it finds that"
            (folder / file).write_bytes(sound)
            continue
        with capture_logs() as lines:
            bring(ref, "nlp")
        assert (folder / file).read_bytes() == sound
        told = [line["key"].rpartition("/")[2] for line in lines if "key" in line]
        if file == "COMMIT.json" or how == "missing":
            assert told == [], "not known to be damage: a node may never have had it"
        else:
            assert told == [file]


@pytest.mark.parametrize("how", ["flip", "truncate", "missing"])
def test_damage_on_the_node_and_in_the_store_is_named(
    node: Checkpoints, store: LocalStore, how: str
):
    parts = uploaded(node)
    ref = commit(store, parts)
    key = parts[1].shards[0].key
    folder = node.fetch(ref, "nlp")
    break_file(folder / "rank-00001.bin", "flip")
    break_file(store.root / key, how)
    with pytest.raises(CheckpointDamaged) as again:
        node.refetch(ref, "nlp", "rank-00001.bin")
    with pytest.raises(CheckpointDamaged) as whole:
        node.fetch(ref, "nlp")
    assert again.value.key == whole.value.key == key
    assert not (folder / "rank-00001.bin").exists(), "nobody starts from it"


@pytest.mark.parametrize("file", ["rank-00007.bin", "../step-0000000009/rank-00000.bin", ""])
def test_what_is_no_file_of_the_checkpoint_is_not_fetched(
    node: Checkpoints, store: LocalStore, file: str
):
    ref = commit(store, uploaded(node))
    with pytest.raises(WrongPath, match="no file of this checkpoint"):
        node.refetch(ref, "nlp", file)


def test_a_rank_is_told_whether_there_is_a_sound_copy(node: Checkpoints, store: LocalStore):
    parts = uploaded(node)
    ref = commit(store, parts)
    folder = node.fetch(ref, "nlp")
    resumed = ALLOCATION.model_copy(update={"attempt": 2, "resume": ref})
    notes: list[str] = []
    lost: list[NoSoundCopy] = []
    repairs = Repairs(node, lambda _, text: notes.append(text), lost.append)
    asked = CopyDamaged(file="rank-00001.bin", reason="its xxh3-128 is another")
    break_file(folder / asked.file, "flip")
    assert repairs.answer(rank_key(1), resumed, asked) == CopyReplaced(file=asked.file, sound=True)
    assert (folder / asked.file).read_bytes() == b"bin of 1 at 5"
    store.delete(parts[1].shards[0].key)
    break_file(folder / asked.file, "flip")
    assert not repairs.answer(rank_key(1), resumed, asked).sound
    assert "a sound copy of the store lies there now" in notes[0]
    assert "is missing" in notes[1]
    assert lost == [NoSoundCopy(rank_key(1), parts[1].shards[0].key)]
    first = ALLOCATION.model_copy(update={"resume": None})
    assert not repairs.answer(rank_key(1), first, asked).sound


def test_a_rank_that_asks_on_and_on_gets_no_more(node: Checkpoints):
    repairs = Repairs(node, lambda _rank, _text: None, lambda _: None)
    asked = [repairs.admit(rank_key(0), ALLOCATION) for _ in range(17)]
    assert asked == [True] * 16 + [False]
    assert repairs.admit(rank_key(1), ALLOCATION)
    repairs.forget(GangKey("job", 1))
    assert repairs.admit(rank_key(0), ALLOCATION)


def test_a_rank_may_ask_for_each_file_that_was_not_brought(node: Checkpoints, store: LocalStore):
    resumed = ALLOCATION.model_copy(update={"resume": commit(store, uploaded(node))})
    repairs = Repairs(node, lambda _rank, _text: None, lambda _: None)
    asked = [repairs.admit(rank_key(0), resumed) for _ in range(21)]
    assert asked == [True] * (16 + 2 * 2) + [False], "two ranks with a shard and a manifest each"


def test_a_checkpoint_of_another_team_is_refused(node: Checkpoints, store: LocalStore):
    ref = commit(store, uploaded(node))
    with pytest.raises(WrongPath, match="team other"):
        node.fetch(ref, "other")


def test_a_commit_record_that_names_other_keys_is_refused(node: Checkpoints, store: LocalStore):
    parts = uploaded(node)
    away = parts[0].model_copy(
        update={"manifest": parts[0].manifest.model_copy(update={"key": "teams/x/secret"})}
    )
    with pytest.raises(CheckpointDamaged, match="beside"):
        node.fetch(commit(store, [away, parts[1]]), "nlp")


def test_a_checkpoint_that_is_not_there_is_said_so(node: Checkpoints, store: LocalStore):
    ref = commit(store, uploaded(node))
    store.delete(ref.commit_key)
    with pytest.raises(CheckpointDamaged, match=r"COMMIT\.json is missing"):
        node.fetch(ref, "nlp")


def test_the_last_two_steps_are_kept_on_the_disk(node: Checkpoints):
    for step in (5, 10, 15):
        uploaded(node, step)
    node.prune("job")
    left = sorted(path.name for path in (node.folder("job") / "attempt-0001").iterdir())
    assert left == ["step-0000000010", "step-0000000015"]
    node.forget("job")
    assert list(node.folder("job").iterdir()) == []
