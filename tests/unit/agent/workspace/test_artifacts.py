"""Artifacts of a job: stored by content, read back verified, and refused where they are odd."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gangline_pipelines.core.model import Checked, CheckOutputs
from gangline_pipelines.service.executor import OutputChecker
from gangline_schemas.artifacts import Artifact, JobArtifacts
from gangline_storage import LocalStore
from gangline_worker.agent.workspace.artifacts import ArtifactStore, BadOutput, DamagedInput

BOTH = JobArtifacts(outputs={"model": "folder", "acc": "score"})


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(LocalStore(tmp_path / "store"), "nlp")


def left(tmp_path: Path, name: str = "out", weights: str = "1 2 3", acc: str = "0.5\n") -> Path:
    folder = tmp_path / name
    (folder / "model" / "deep").mkdir(parents=True)
    (folder / "model" / "weights").write_text(weights)
    (folder / "model" / "deep" / "empty").touch()
    (folder / "acc").write_text(acc)
    return folder


def whole(store: ArtifactStore, *artifacts: Artifact) -> tuple[str, ...]:
    """The digests that the pipelines service finds missing."""
    checker = OutputChecker(store.store, read_bytes=1 << 20)
    found = checker("k", CheckOutputs(store.team, tuple(one.digest for one in artifacts)))
    assert isinstance(found, Checked)
    return found.missing


def test_outputs_are_read_back_as_inputs(store: ArtifactStore, tmp_path: Path) -> None:
    made = store.put(BOTH, left(tmp_path), None)
    assert (made["model"].files, made["model"].size_bytes, made["acc"].value) == (2, 5, 0.5)
    inputs = {"m": made["model"].digest, "scores/0": made["acc"].digest}
    store.fetch(JobArtifacts(inputs=inputs), tmp_path / "in")
    assert (tmp_path / "in" / "m" / "weights").read_text() == "1 2 3"
    assert (tmp_path / "in" / "m" / "deep" / "empty").read_bytes() == b""
    assert float((tmp_path / "in" / "scores" / "0" / "value").read_text()) == 0.5
    assert whole(store, *made.values()) == ()


def test_equal_folders_have_equal_digests(store: ArtifactStore, tmp_path: Path) -> None:
    first = store.put(BOTH, left(tmp_path, "a"), None)
    assert store.put(BOTH, left(tmp_path, "b"), None) == first
    other = store.put(BOTH, left(tmp_path, "c", weights="1 2 4"), None)
    assert other["model"].digest != first["model"].digest
    assert other["acc"] == first["acc"]


def test_a_commit_record_is_looked_for_beside_the_artifacts(store: ArtifactStore) -> None:
    store.store.put("teams/nlp/runs/r/COMMIT.json", b"{}")
    checker = OutputChecker(store.store, read_bytes=0)
    saves = ("teams/nlp/runs/r/COMMIT.json", "teams/nlp/runs/s/COMMIT.json")
    assert checker("k", CheckOutputs("nlp", (), saves)) == Checked((), saves[1:])


@pytest.mark.parametrize("harm", ["deleted", "damaged", "shortened", "no manifest"])
def test_a_harmed_artifact_is_missing_until_it_is_stored_again(
    store: ArtifactStore, tmp_path: Path, harm: str
) -> None:
    made = store.put(BOTH, left(tmp_path), None)
    objects = sorted((tmp_path / "store").rglob("*-5"))
    (path,) = objects
    if harm == "deleted":
        path.unlink()
    elif harm == "no manifest":
        (manifest,) = (tmp_path / "store").rglob(f"{made['model'].digest}.json")
        manifest.unlink()
    else:
        path.chmod(0o600)
        path.write_text("1 2 4" if harm == "damaged" else "1 2")
    assert whole(store, *made.values()) == (made["model"].digest,)
    with pytest.raises((DamagedInput, Exception)):
        store.fetch(JobArtifacts(inputs={"m": made["model"].digest}), tmp_path / "in")
    assert store.put(BOTH, tmp_path / "out", None) == made
    assert whole(store, *made.values()) == ()


@pytest.mark.parametrize("acc", ["", "high", "nan", "inf", "1" * 5000, "0.5 0.6"])
def test_a_score_is_one_finite_number(store: ArtifactStore, tmp_path: Path, acc: str) -> None:
    with pytest.raises(BadOutput, match="output acc"):
        store.put(BOTH, left(tmp_path, acc=acc), None)


def test_missing_empty_and_odd_outputs_are_refused(store: ArtifactStore, tmp_path: Path) -> None:
    folder = left(tmp_path)
    (folder / "acc").unlink()
    with pytest.raises(BadOutput, match="no file GANGLINE_OUT/acc"):
        store.put(BOTH, folder, None)
    only = JobArtifacts(outputs={"model": "folder"})
    (folder / "model" / "passwords").symlink_to("/etc/passwd")
    with pytest.raises(BadOutput, match="'passwords' is a link"):
        store.put(only, folder, None)
    (tmp_path / "empty" / "model").mkdir(parents=True)
    with pytest.raises(BadOutput, match="holds no file"):
        store.put(only, tmp_path / "empty", None)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "model").symlink_to(folder / "model" / "deep")
    with pytest.raises(BadOutput, match="there is no folder"):
        store.put(only, tmp_path / "linked", None)


def test_another_team_cannot_read_it(store: ArtifactStore, tmp_path: Path) -> None:
    made = store.put(BOTH, left(tmp_path), None)
    others = ArtifactStore(store.store, "vision")
    with pytest.raises(Exception, match=made["model"].digest):
        others.fetch(JobArtifacts(inputs={"m": made["model"].digest}), tmp_path / "in")


@pytest.mark.parametrize("name", [b"a\xff", b"a\nb"], ids=["no UTF-8", "a new line"])
def test_a_name_that_no_store_can_hold_is_refused(
    store: ArtifactStore, tmp_path: Path, name: bytes
) -> None:
    folder = left(tmp_path)
    Path(os.fsdecode(os.fsencode(folder / "model") + b"/" + name)).touch()
    with pytest.raises(BadOutput, match="cannot be a name in the store"):
        store.put(BOTH, folder, None)
