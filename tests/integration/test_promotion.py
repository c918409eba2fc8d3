"""Validating checkpoints in fresh processes of the real trainer: what is refused, and why."""

from __future__ import annotations

import json
import math
import re
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from gangline_schemas.checkpoint import RankManifest, manifest_name, shard_name
from gangline_storage import digest_bytes
from gangline_worker.checkpoint.commit import commit_local, committed
from gangline_worker.checkpoint.loader import COMMIT_FILE, Checkpoint
from support.harnesses.gang import EXIT_ERROR, SAVE_ENV, Gang, Run

RANKS = 2
SETTINGS = ("steps=6", "checkpoint_every_steps=3")
PROMOTE = {"GANGLINE_PROMOTE": "final"}
VALIDATE = {"GANGLINE_VALIDATE": "1"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Six steps on two ranks, whose saves after steps 3 and 6 have a loss with them."""
    directory = tmp_path_factory.mktemp("promotion") / "trained"
    return ended_well(Gang(directory, RANKS, SETTINGS, extra_env=PROMOTE).wait())


def ended_well(run: Run) -> Run:
    assert set(run.codes) == {0}, run.text
    return run


def newest(run: Run) -> Path:
    return committed(run.directory / "checkpoints")[-1]


def validated(directory: Path, folder: Path, ranks: int = 1) -> Run:
    return Gang(directory, ranks, SETTINGS, resume_from=folder, extra_env=VALIDATE).wait()


def refusal(run: Run) -> str:
    """What the rank said last."""
    assert set(run.codes) == {EXIT_ERROR}, run.text
    return run.text.strip().splitlines()[-1]


def rewritten(source: Path, target: Path, change: Any) -> Path:
    """A copy whose manifests and shards are `change(manifest, shard)`, committed as what it is."""
    shutil.copytree(source, target)
    (target / COMMIT_FILE).unlink()
    for rank in range(RANKS):
        path, data = target / manifest_name(rank), target / shard_name(rank)
        manifest = RankManifest.decode(path.read_bytes())
        shard = bytearray(data.read_bytes())
        fields = change(manifest, shard)
        data.write_bytes(shard)
        digest = manifest.shard.model_copy(update={"xxh3": digest_bytes(bytes(shard))})
        path.write_bytes(manifest.model_copy(update={"shard": digest, **fields}).encode())
    assert commit_local(target, RANKS)
    return target


@pytest.mark.parametrize("ranks", [1, RANKS])
def test_what_loads_and_has_the_recorded_loss_is_sound(
    trained: Run, tmp_path: Path, ranks: int
) -> None:
    folder = newest(trained)
    run = ended_well(validated(tmp_path / "run", folder, ranks))
    loss = Checkpoint(folder).record.metrics["eval_loss"]
    said = re.search(r"step 6 is sound: its evaluation loss is (\S+), as was recorded", run.text)
    assert said is not None
    assert float(said[1]) == pytest.approx(loss, abs=1e-6 if ranks == RANKS else 1e-4)
    assert committed(run.directory / "checkpoints") == [], "it saves nothing"
    assert not (run.directory / "losses.jsonl").exists(), "it takes no step"


def test_recording_losses_changes_nothing(trained: Run, tmp_path: Path) -> None:
    plain = ended_well(Gang(tmp_path / "plain", RANKS, SETTINGS).wait())
    assert plain.losses() == trained.losses()
    assert [path.read_bytes() for path in sorted(newest(plain).glob("*.bin"))] == [
        path.read_bytes() for path in sorted(newest(trained).glob("*.bin"))
    ]
    assert "no loss was recorded" in refusal(validated(tmp_path / "run", newest(plain)))


def test_weights_that_are_not_finite_are_refused_however_right_their_bytes(
    trained: Run, tmp_path: Path
) -> None:
    def spoil(manifest: RankManifest, shard: bytearray) -> dict[str, Any]:
        piece = next(item for item in manifest.tensors if item.name.startswith("model."))
        struct.pack_into("<f", shard, piece.byte_offset, math.nan)
        return {}

    folder = rewritten(newest(trained), tmp_path / "step-0000000006", spoil)
    said = refusal(validated(tmp_path / "run", folder))
    assert said == "error: its weights are not finite"


def test_all_ranks_go_back_when_the_last_save_finds_one_with_such_weights(
    trained: Run, tmp_path: Path
) -> None:
    """It does not count as a disk's fault, as a save that is not whole would be."""

    def spoil(manifest: RankManifest, shard: bytearray) -> dict[str, Any]:
        if manifest.rank == 1:
            piece = next(item for item in manifest.tensors if item.name.startswith("model."))
            struct.pack_into("<f", shard, piece.byte_offset, math.nan)
        return {}

    folder = rewritten(newest(trained), tmp_path / "step-0000000006", spoil)
    env = {SAVE_ENV: "1"}
    run = Gang(tmp_path / "run", RANKS, SETTINGS, resume_from=folder, extra_env=env).wait()
    assert set(run.codes) == {EXIT_ERROR}, run.text
    error = "gangline_worker.loss_watch.NotFiniteError"
    for output in run.outputs:
        assert output.strip().splitlines()[-1].startswith(error)
    assert committed(run.directory / "checkpoints") == []


def test_a_loss_that_is_not_the_recorded_one_is_refused_with_both(
    trained: Run, tmp_path: Path
) -> None:
    recorded = Checkpoint(newest(trained)).record.metrics["eval_loss"]

    def exaggerate(manifest: RankManifest, _shard: bytearray) -> dict[str, Any]:
        state = json.loads(json.dumps(manifest.state))
        state["evaluation"]["loss"] = recorded * 1.01
        return {"state": state}

    folder = rewritten(newest(trained), tmp_path / "step-0000000006", exaggerate)
    said = refusal(validated(tmp_path / "run", folder, RANKS))
    assert said == (
        f"error: its evaluation loss is {recorded:.6f}, and {recorded * 1.01:.6f} was recorded"
    )


def test_without_a_checkpoint_there_is_nothing_to_validate(tmp_path: Path) -> None:
    run = Gang(tmp_path / "run", 1, SETTINGS, extra_env=VALIDATE).wait()
    assert refusal(run) == "error: there is no checkpoint to validate"
