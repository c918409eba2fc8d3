"""The trainer as real processes over gloo: killed, resumed, resharded, fed broken files."""

from __future__ import annotations

import math
import re
import shutil
import signal
from pathlib import Path

import pytest

from gangline_schemas.checkpoint import EACH_COPY_BYTES
from gangline_schemas.rank_protocol import CopyDamaged, CopyReplaced, FromRank
from gangline_worker.checkpoint.commit import committed
from gangline_worker.checkpoint.loader import COMMIT_FILE, Checkpoint
from gangline_worker.training.__main__ import EXIT_SAVE
from gangline_worker.training.config import TrainConfig
from gangline_worker.training.state import TrainState
from support.fakes.agent_end import AgentEnd
from support.harnesses.gang import (
    BAD_LOSS_ENV,
    EXIT_CHECKPOINT,
    EXIT_ERROR,
    EXIT_SETTINGS,
    LATE_COPY_ENV,
    TINY,
    Gang,
    Run,
    train,
)

STEPS = 12


def at_step(run: Run, step: int) -> Path:
    """The committed checkpoint of a step."""
    [folder] = [f for f in committed(run.directory / "checkpoints") if int(f.name[5:]) == step]
    return folder


def shards(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob("*.bin"))]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Twelve steps of FSDP on two ranks; kept are the checkpoints of steps 6 and 12."""
    directory = tmp_path_factory.mktemp("training") / "undisturbed"
    code = {"GANGLINE_CODE_REF": "3f2c1ab"}
    return train(directory, 2, f"steps={STEPS}", "checkpoint_every_steps=6", extra_env=code)


def test_the_loss_falls(undisturbed: Run) -> None:
    losses = undisturbed.losses()
    assert list(losses) == list(range(1, STEPS + 1))
    assert losses[STEPS] < losses[1] - 0.2


def test_a_checkpoint_tells_all_that_its_run_was(undisturbed: Run) -> None:
    checkpoints = [Checkpoint(at_step(undisturbed, step)) for step in (STEPS // 2, STEPS)]
    first, last = (
        [TrainState.model_validate(manifest.state) for manifest in checkpoint.manifests]
        for checkpoint in checkpoints
    )
    settings = dict(setting.split("=") for setting in TINY.split())
    config = TrainConfig.model_validate({**settings, "steps": STEPS, "checkpoint_every_steps": 6})
    assert [(state.step, state.position) for state in last] == [(12, 12 * config.batch_size)] * 2
    assert {state.config_digest for state in (*first, *last)} == {config.digest()}
    assert {state.code_ref for state in (*first, *last)} == {"3f2c1ab"}
    assert len({state.rng.torch_cpu for state in last}) == 2, (
        "each rank has random numbers of its own"
    )
    parts = {name.rpartition(".")[2] for name in checkpoints[1].tensors() if name[:6] != "model."}
    assert parts == {"step", "exp_avg", "exp_avg_sq"}


def test_a_killed_run_goes_on_bit_for_bit(undisturbed: Run, tmp_path: Path) -> None:
    settings = (f"steps={STEPS}", "checkpoint_every_steps=3")
    dead = Gang(tmp_path / "killed", 2, settings, killed=(1, 5)).wait()
    assert dead.codes == (1, -signal.SIGKILL), dead.text
    assert re.search("closed by peer|reset by peer|Broken pipe", dead.outputs[0]), (
        "by this the fault manager knows the survivors"
    )
    assert max(dead.losses()) == 5
    [found] = committed(tmp_path / "killed" / "checkpoints")
    assert found.name == "step-0000000003"

    gang = Gang(tmp_path / "killed", 2, settings, attempt=2, resume_from=found)
    run = gang.wait()
    assert run.codes == (0, 0), run.text
    assert run.losses() == undisturbed.losses()
    assert "resumed from attempt-0001/step-0000000003\n" in run.text
    last = at_step(run, STEPS)
    assert last.parent.name == "attempt-0002"
    assert shards(last) == shards(at_step(undisturbed, STEPS))


@pytest.mark.parametrize("strategy", ["fsdp", "ddp"])
def test_one_ranks_bad_loss_is_left_out_by_all(tmp_path: Path, strategy: str) -> None:
    settings = (f"steps={STEPS}", "checkpoint_every_steps=3", f"strategy={strategy}")
    run = Gang(tmp_path / "nan", 2, settings, extra_env={BAD_LOSS_ENV: "1 5 2 inf"}).wait()
    assert run.codes == (0, 0), run.text
    losses, norms = run.losses(), run.by_step("grad_norm")
    assert [step for step, loss in losses.items() if not math.isfinite(loss)] == [5, 6]
    assert [step for step, norm in norms.items() if not math.isfinite(norm)] == [5, 6]
    assert losses[STEPS] < losses[4]
    saved = {int(folder.name[5:]) for folder in committed(tmp_path / "nan" / "checkpoints")}
    assert STEPS in saved
    assert 6 not in saved, "a restart must not go back into it"


def test_too_many_bad_losses_end_all_ranks_and_the_run_goes_on_bit_for_bit(
    undisturbed: Run, tmp_path: Path
) -> None:
    settings = (f"steps={STEPS}", "checkpoint_every_steps=3")
    env = {BAD_LOSS_ENV: "1 5 9 inf", "GANGLINE_TRAINING": '{"on_nan": {"skip": 0}}'}
    dead = Gang(tmp_path / "nan", 2, settings, extra_env=env).wait()
    assert dead.codes == (EXIT_ERROR, EXIT_ERROR), dead.text
    for output in dead.outputs:
        last = output.strip().splitlines()[-1]
        assert last.startswith("gangline_worker.loss_watch.NotFiniteError: "), output
        assert "not finite in step 5" in last
    [found] = committed(tmp_path / "nan" / "checkpoints")
    assert found.name == "step-0000000003"
    run = Gang(tmp_path / "nan", 2, settings, attempt=2, resume_from=found).wait()
    assert run.codes == (0, 0), run.text
    assert run.losses() == undisturbed.losses()


def test_a_spike_ends_all_ranks_and_leaves_the_checkpoint_before_it(tmp_path: Path) -> None:
    settings = ("steps=40", "checkpoint_every_steps=3")
    policy = '{"on_spike": {"window": 16, "steps": 3, "then": "restart"}}'
    env = {BAD_LOSS_ENV: "0 18 9 50", "GANGLINE_TRAINING": policy}
    run = Gang(tmp_path / "spike", 2, settings, extra_env=env).wait()
    assert run.codes == (EXIT_ERROR, EXIT_ERROR), run.text
    assert max(run.losses()) == 20
    for output in run.outputs:
        assert "LossSpikeError: the loss was above" in output.strip().splitlines()[-1]
    saved = {int(folder.name[5:]) for folder in committed(tmp_path / "spike" / "checkpoints")}
    newest = max(saved)
    put_off = "no save at step" in run.text  # an earlier one was still being written
    assert newest == 15 or (put_off and newest < 18), "step 18 was high already"


def test_weights_wait_for_the_copy_of_the_step_before(undisturbed: Run, tmp_path: Path) -> None:
    settings = (f"steps={STEPS}", "checkpoint_every_steps=6")
    run = Gang(tmp_path / "late", 2, settings, extra_env={LATE_COPY_ENV: "1"}).wait()
    assert run.codes == (0, 0), run.text
    assert shards(at_step(run, 6)) == shards(at_step(undisturbed, 6))


@pytest.mark.parametrize(
    ("ranks", "strategy"), [(1, "fsdp"), (4, "fsdp"), (2, "ddp")], ids=["2to1", "2to4", "to-ddp"]
)
def test_another_world_size_goes_on_alike(
    undisturbed: Run, tmp_path: Path, ranks: int, strategy: str
) -> None:
    run = train(
        tmp_path / "other",
        ranks,
        f"steps={STEPS}",
        f"strategy={strategy}",
        resume_from=at_step(undisturbed, 6),
    )
    losses = run.losses()
    assert list(losses) == list(range(7, STEPS + 1))
    for step, loss in losses.items():
        assert loss == pytest.approx(undisturbed.losses()[step], abs=1e-5)
    assert "step-0000000006, saved with other settings and other code\n" in run.text


def test_another_order_of_the_data_is_named(undisturbed: Run, tmp_path: Path) -> None:
    run = train(
        tmp_path / "other",
        1,
        "steps=7",
        "seed=18",
        "seq_len=64",
        resume_from=at_step(undisturbed, 6),
    )
    assert "samples come in another order than before (seq_len was 32, is 64, seed was" in run.text
    assert "data_shuffle_gb" not in run.text


def test_ddp_equals_fsdp_and_goes_on_bit_for_bit(undisturbed: Run, tmp_path: Path) -> None:
    settings = (f"steps={STEPS}", "strategy=ddp", "checkpoint_every_steps=6")
    whole = train(tmp_path / "whole", 2, *settings)
    for step, loss in whole.losses().items():
        assert loss == pytest.approx(undisturbed.losses()[step], abs=1e-5)
    resumed = train(tmp_path / "resumed", 2, *settings, resume_from=at_step(whole, 6))
    assert resumed.losses() == {s: v for s, v in whole.losses().items() if s > 6}
    assert shards(at_step(resumed, STEPS)) == shards(at_step(whole, STEPS))


def test_replicas_write_each_byte_once_but_for_small_tensors(tmp_path: Path) -> None:
    run = train(tmp_path / "ddp", 2, "steps=1", "strategy=ddp", "dim=256")
    checkpoint = Checkpoint(at_step(run, 1))
    held: dict[str, int] = {}
    for manifest in checkpoint.manifests:
        for piece in manifest.tensors:
            held[piece.name] = held.get(piece.name, 0) + piece.size_bytes
    whole = {
        name: 4 * _elements(piece.global_shape) for name, piece in checkpoint.tensors().items()
    }
    assert max(whole.values()) > EACH_COPY_BYTES
    assert held == {n: size * (1 + (size <= EACH_COPY_BYTES)) for n, size in whole.items()}


def _elements(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def test_accumulation_and_recomputation_change_nothing(undisturbed: Run, tmp_path: Path) -> None:
    run = train(tmp_path / "a", 2, f"steps={STEPS}", "accumulation=2", "recompute=true")
    for step, loss in run.losses().items():
        assert loss == pytest.approx(undisturbed.losses()[step], abs=1e-5)


@pytest.mark.parametrize("damage", ["flip", "truncate", "missing", "manifest"])
def test_a_broken_checkpoint_is_refused_by_all_ranks(
    undisturbed: Run, tmp_path: Path, damage: str
) -> None:
    folder = tmp_path / "attempt-0001" / "step-0000000006"
    folder.mkdir(parents=True)
    for path in at_step(undisturbed, 6).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    victim = folder / ("rank-00001.json" if damage == "manifest" else "rank-00001.bin")
    raw = bytearray(victim.read_bytes())
    if damage in {"flip", "manifest"}:
        raw[len(raw) // 2] ^= 1
        victim.write_bytes(raw)
    elif damage == "truncate":
        victim.write_bytes(raw[:-1])
    else:
        victim.unlink()
    run = Gang(tmp_path / "run", 2, ("steps=8",), resume_from=folder).wait()
    assert run.codes == (EXIT_CHECKPOINT, EXIT_CHECKPOINT), run.text
    assert f"corrupt checkpoint: {victim}" in run.outputs[1]
    assert "step 7/" not in run.text


def test_a_checkpoint_of_another_model_is_the_users_error_not_damage(
    undisturbed: Run, tmp_path: Path
) -> None:
    """Damage (65) is blamed on node and disk and tried again elsewhere; this would be in vain."""
    run = Gang(tmp_path / "run", 2, ("steps=8", "dim=64"), resume_from=at_step(undisturbed, 6))
    ended = run.wait()
    assert ended.codes == (EXIT_SETTINGS, EXIT_SETTINGS), ended.text
    assert "train the same model, or start afresh" in ended.text
    assert "corrupt" not in ended.text


def test_a_checkpoint_behind_the_last_step_is_refused(undisturbed: Run, tmp_path: Path) -> None:
    """Else the run would never come to its last step, and train until it is cancelled."""
    ended = Gang(tmp_path / "run", 2, ("steps=4",), resume_from=at_step(undisturbed, 6)).wait()
    assert ended.codes == (EXIT_SETTINGS, EXIT_SETTINGS), ended.text
    assert "error: steps (4) is below the step of the checkpoint (6)" in ended.text


def test_a_damaged_copy_is_replaced_by_the_agent_and_the_run_goes_on(
    undisturbed: Run, tmp_path: Path
) -> None:
    sound = at_step(undisturbed, 6)
    folder = tmp_path / "attempt-0001" / sound.name
    shutil.copytree(sound, folder)
    raw = bytearray((folder / "rank-00001.bin").read_bytes())
    raw[len(raw) // 2] ^= 1
    (folder / "rank-00001.bin").write_bytes(raw)
    agent = AgentEnd(tmp_path)
    env = {"GANGLINE_AGENT_SOCKET": agent.path, "GANGLINE_RANK_TOKEN": "t0k"}
    gang = Gang(tmp_path / "run", 2, (f"steps={STEPS}",), resume_from=folder, extra_env=env)

    def damaged(said: list[FromRank]) -> list[CopyDamaged]:
        return [message for message in said if isinstance(message, CopyDamaged)]

    [asked] = damaged(agent.wait_for(lambda said: bool(damaged(said))))
    assert asked.file == "rank-00001.bin"
    shutil.copy(sound / asked.file, folder / asked.file)
    agent.ask(CopyReplaced(file=asked.file, sound=True))
    run = gang.wait()
    agent.hang_up()
    assert run.codes == (0, 0), run.text
    assert run.losses() == {s: v for s, v in undisturbed.losses().items() if s > 6}


def test_an_uncommitted_checkpoint_does_not_count(undisturbed: Run, tmp_path: Path) -> None:
    folder = tmp_path / "step-0000000006"
    folder.mkdir()
    for path in at_step(undisturbed, 6).glob("rank-*"):
        (folder / path.name).write_bytes(path.read_bytes())
    run = Gang(tmp_path / "run", 1, ("steps=8",), resume_from=folder).wait()
    assert run.codes == (EXIT_CHECKPOINT,), run.text
    assert COMMIT_FILE in run.text


@pytest.mark.parametrize(("in_the_way_of", "code"), [(1, 0), (2, EXIT_SAVE)])
def test_a_run_whose_last_save_failed_has_not_succeeded(
    tmp_path: Path, in_the_way_of: int, code: int
) -> None:
    folder = tmp_path / "run/checkpoints/attempt-0001"
    folder.mkdir(parents=True)
    (folder / f"step-{in_the_way_of:010d}").touch()
    run = Gang(tmp_path / "run", 1, ("steps=2", "checkpoint_every_steps=1")).wait()
    assert run.codes == (code,), run.text
    assert f"checkpoint of step {in_the_way_of} failed: " in run.text
    assert ("error: the checkpoint of step 2, the last, is not whole" in run.text) == (code != 0)


def test_a_batch_that_does_not_divide_is_refused(tmp_path: Path) -> None:
    run = Gang(tmp_path / "run", 2, ("batch_size=7",)).wait()
    assert run.codes == (EXIT_SETTINGS, EXIT_SETTINGS), run.text
    assert "batch_size (7) does not divide by 2 GPUs; give a batch_size that is a" in run.text


def test_an_elastic_gang_is_refused_at_its_first_size_already(tmp_path: Path) -> None:
    """The batch divides by these two ranks, and not by three, which the gang may have later."""
    elastic = {"GANGLINE_RESOURCES": '{"gpus":4,"min_gpus":1,"gpus_per_worker":1}'}
    run = Gang(tmp_path / "run", 2, ("batch_size=8",), extra_env=elastic).wait()
    assert run.codes == (EXIT_SETTINGS, EXIT_SETTINGS), run.text
    assert (
        "error: batch_size (8) does not divide by 3 GPUs, which the gang may have; give gpus: 4, "
        "min_gpus: 1 and gpu_counts: [1, 2, 4] under resources, or another batch_size"
    ) in run.text
    assert "step 1/" not in run.text


def test_sigterm_of_one_rank_saves_and_stops_all(tmp_path: Path) -> None:
    gang = Gang(tmp_path / "run", 2, ("steps=100000", "log_every_steps=1"))
    gang.wait_for(r"step 3/")
    gang.signal(1, signal.SIGTERM)
    run = gang.wait()
    assert run.codes == (0, 0), run.text
    [folder] = committed(tmp_path / "run" / "checkpoints")
    assert f"stopped after step {int(folder.name[5:])}" in run.outputs[0]
    assert "sigterm" in run.outputs[1]
