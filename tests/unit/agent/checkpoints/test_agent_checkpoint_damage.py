"""Damaged, foreign and missing copies of a checkpoint: named, fetched again or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gangline_schemas.rank_protocol import CopyDamaged, CopyReplaced
from gangline_storage.errors import StoreError
from gangline_storage.local import LocalStore
from gangline_storage.port import ObjectInfo
from gangline_worker.agent.checkpoints.integrity import CheckpointDamaged, WrongPath
from gangline_worker.agent.checkpoints.repair import Repairs
from gangline_worker.agent.checkpoints.transfer import Checkpoints
from gangline_worker.agent.decide.inputs import NoSoundCopy
from gangline_worker.agent.decide.keys import GangKey
from support.fixtures.node_checkpoints import (
    ALLOCATION,
    break_file,
    commit,
    node,
    rank_key,
    store,
    uploaded,
)

__all__ = ["node", "store"]


def test_a_damaged_object_in_the_store_is_named(
    node: Checkpoints, store: LocalStore, tmp_path: Path
) -> None:
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


@pytest.mark.parametrize("how", ["flip", "truncate", "missing"])
@pytest.mark.parametrize("file", ["rank-00001.bin", "rank-00000.json", "COMMIT.json"])
def test_a_damaged_local_file_comes_again_from_the_store_and_is_told(
    node: Checkpoints, store: LocalStore, file: str, how: str
) -> None:
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
) -> None:
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
) -> None:
    ref = commit(store, uploaded(node))
    with pytest.raises(WrongPath, match="no file of this checkpoint"):
        node.refetch(ref, "nlp", file)


def test_a_rank_is_told_whether_there_is_a_sound_copy(node: Checkpoints, store: LocalStore) -> None:
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


def test_a_rank_that_asks_on_and_on_gets_no_more(node: Checkpoints) -> None:
    repairs = Repairs(node, lambda _rank, _text: None, lambda _: None)
    asked = [repairs.admit(rank_key(0), ALLOCATION) for _ in range(17)]
    assert asked == [True] * 16 + [False]
    assert repairs.admit(rank_key(1), ALLOCATION)
    repairs.forget(GangKey("job", 1))
    assert repairs.admit(rank_key(0), ALLOCATION)


def test_a_checkpoint_of_another_team_is_refused(node: Checkpoints, store: LocalStore) -> None:
    ref = commit(store, uploaded(node))
    with pytest.raises(WrongPath, match="team other"):
        node.fetch(ref, "other")


def test_a_commit_record_that_names_other_keys_is_refused(
    node: Checkpoints, store: LocalStore
) -> None:
    parts = uploaded(node)
    away = parts[0].model_copy(
        update={"manifest": parts[0].manifest.model_copy(update={"key": "teams/x/secret"})}
    )
    with pytest.raises(CheckpointDamaged, match="beside"):
        node.fetch(commit(store, [away, parts[1]]), "nlp")


def test_a_checkpoint_that_is_not_there_is_said_so(node: Checkpoints, store: LocalStore) -> None:
    ref = commit(store, uploaded(node))
    store.delete(ref.commit_key)
    with pytest.raises(CheckpointDamaged, match=r"COMMIT\.json is missing"):
        node.fetch(ref, "nlp")


def test_a_node_with_another_store_accuses_no_checkpoint(
    node: Checkpoints, store: LocalStore, tmp_path: Path
) -> None:
    ref = commit(store, uploaded(node))
    unmounted = LocalStore(tmp_path / "unmounted")
    other = Checkpoints(tmp_path / "other", unmounted, node_id="m", link=False)
    with pytest.raises(StoreError, match="has this node the right store"):
        other.fetch(ref, "nlp")


class SpoilingDisk(LocalStore):
    """A sound store, fetched from to a disk that changes a byte."""

    def fetch(self, key: str, path: Path, *, link: bool = False) -> ObjectInfo:
        info = super().fetch(key, path, link=link)
        break_file(path, "flip")
        return info


def test_a_node_whose_disk_spoils_what_it_fetched_accuses_itself(
    node: Checkpoints, store: LocalStore, tmp_path: Path
) -> None:
    ref = commit(store, uploaded(node))
    spoiling = SpoilingDisk(store.root)
    other = Checkpoints(tmp_path / "other", spoiling, node_id="m", link=False)
    with pytest.raises(OSError, match="Input/output error: this node's copy"):
        other.fetch(ref, "nlp")
