"""Gangs that train from token shards: at other world sizes, from a store, and with damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gangline_schemas.rank_protocol import DataDamaged, FromRank
from gangline_worker.checkpoint.commit import committed
from gangline_worker.data.errors import EXIT_DATA_SHARD
from gangline_worker.data.manifest import read_manifest
from gangline_worker.data.prepare import prepare
from gangline_worker.data.text import STDLIB, load_text
from gangline_worker.data.tokenizer import ByteTokenizer
from support.builders.data import flip, small_sources
from support.fakes.agent_end import AgentEnd
from support.harnesses.gang import EXIT_SETTINGS, Gang, Run, train

STEPS = 10
# The snapshot holds 60,001 tokens, 375 windows of 160: an epoch is 6.25 steps. So a run of 10
# begins a second one, and the checkpoint of step 5 lies in the midst of the first.
LONG = ("seq_len=160", "batch_size=60")


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60,000 bytes of source code in shards of 16 KiB with blocks of 2 KiB."""
    folder = tmp_path_factory.mktemp("snapshot")
    (folder / "text.txt").write_bytes(load_text(STDLIB, max_bytes=60_000).tobytes())
    out = folder / "corpus"
    sources = small_sources([folder / "text.txt"], out, shard_tokens=8192, block_bytes=2048)
    prepare(out, sources, ByteTokenizer(), lambda _: None)
    return out


@pytest.fixture(scope="module")
def undisturbed(snapshot: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Ten steps on two ranks, over the end of an epoch; kept is the checkpoint of step 5."""
    directory = tmp_path_factory.mktemp("training") / "undisturbed"
    settings = (f"data={snapshot}", f"steps={STEPS}", "checkpoint_every_steps=5", *LONG)
    return train(directory, 2, *settings)


def middle(run: Run) -> Path:
    [folder] = [f for f in committed(run.directory / "checkpoints") if int(f.name[5:]) == 5]
    return folder


def test_a_gang_learns_from_shards(undisturbed: Run) -> None:
    losses = undisturbed.losses()
    assert list(losses) == list(range(1, STEPS + 1))
    assert losses[STEPS] < losses[1] - 0.2


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_it_goes_on_in_the_midst_of_an_epoch_at_any_world_size(
    undisturbed: Run, snapshot: Path, tmp_path: Path, ranks: int
) -> None:
    settings = (f"data={snapshot}", f"steps={STEPS}", *LONG)
    run = train(tmp_path / "on", ranks, *settings, resume_from=middle(undisturbed))
    losses = run.losses()
    assert list(losses) == list(range(6, STEPS + 1))
    for step, loss in losses.items():
        whole = undisturbed.losses()[step]
        assert loss == (whole if ranks == 2 else pytest.approx(whole, abs=1e-5))


def test_from_a_store_it_learns_the_same(undisturbed: Run, snapshot: Path, tmp_path: Path) -> None:
    settings = (f"data=file://{snapshot}", f"data_cache={tmp_path}/cache", f"steps={STEPS}", *LONG)
    run = train(tmp_path / "store", 2, *settings)
    assert run.losses() == undisturbed.losses()
    cached = sorted(path.name for path in (tmp_path / "cache").glob("*/*"))
    assert cached == sorted(path.name for path in snapshot.glob("*.tok"))


def test_a_shuffle_in_parts_goes_on_at_another_world_size(
    undisturbed: Run, snapshot: Path, tmp_path: Path
) -> None:
    settings = (f"data={snapshot}", f"steps={STEPS}", "data_shuffle_gb=0.00004", *LONG)
    whole = train(tmp_path / "whole", 2, *settings, "checkpoint_every_steps=5")
    assert whole.losses() != undisturbed.losses()
    resumed = train(tmp_path / "on", 1, *settings, resume_from=middle(whole))
    assert list(resumed.losses()) == list(range(6, STEPS + 1))
    for step, loss in resumed.losses().items():
        assert loss == pytest.approx(whole.losses()[step], abs=1e-5)


def damaged_copy(snapshot: Path, folder: Path, blocks: int) -> Path:
    folder.mkdir()
    for path in snapshot.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    for block in range(blocks):
        flip(folder / "shard-000002.tok", block * 2048 + 7)
    return folder


def test_a_damaged_block_is_left_out_alike_at_every_world_size(
    undisturbed: Run, snapshot: Path, tmp_path: Path
) -> None:
    bad = damaged_copy(snapshot, tmp_path / "bad", 2)
    settings = (f"data={bad}", f"steps={STEPS}", "checkpoint_every_steps=5", *LONG)
    runs = [train(tmp_path / f"of-{ranks}", ranks, *settings) for ranks in (1, 2)]
    for run in runs:
        assert "shard-000002.tok block 0 of corpus@xxh3-" in run.text
        assert "is left out: its xxh3-128 is" in run.text
    one, two = (run.losses() for run in runs)
    assert two != undisturbed.losses()
    for step in range(1, STEPS + 1):
        assert one[step] == pytest.approx(two[step], abs=1e-5)
    again = train(tmp_path / "again", 2, *settings, resume_from=middle(runs[1]))
    assert again.losses() == {step: loss for step, loss in two.items() if step > 5}


def test_damage_in_the_store_is_left_out_alike_again_and_each_block_is_told(
    undisturbed: Run, snapshot: Path, tmp_path: Path
) -> None:
    """Two ranks, a store with two flipped bits, and a fresh cache for each of two runs."""
    store, name = damaged_copy(snapshot, tmp_path / "store", 2), read_manifest(snapshot).name

    def told(said: list[FromRank]) -> set[tuple[str, str, int]]:
        found = [message for message in said if isinstance(message, DataDamaged)]
        return {(message.snapshot, message.shard, message.block) for message in found}

    losses: list[dict[int, float]] = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        agent = AgentEnd(tmp_path / str(number))
        env = {"GANGLINE_AGENT_SOCKET": agent.path, "GANGLINE_RANK_TOKEN": "t0k"}
        cache = f"data_cache={tmp_path}/{number}/cache"
        settings = (f"data=file://{store}", cache, f"steps={STEPS}", *LONG)
        run = Gang(tmp_path / f"{number}/run", 2, settings, extra_env=env).wait()
        assert run.codes == (0, 0), run.text
        said = told(agent.wait_for(lambda said: len(told(said)) == 2))
        agent.hang_up()
        assert said == {(name, "shard-000002.tok", 0), (name, "shard-000002.tok", 1)}
        losses.append(run.losses())
    assert losses[0] == losses[1] != undisturbed.losses()
    assert list(losses[0]) == list(range(1, STEPS + 1))


def test_too_much_damage_ends_the_run_with_its_own_code(snapshot: Path, tmp_path: Path) -> None:
    bad = damaged_copy(snapshot, tmp_path / "bad", 2)
    settings = (f"data={bad}", "steps=10", "data_max_damaged_blocks=0", *LONG)
    run = Gang(tmp_path / "run", 1, settings).wait()
    assert run.codes == (EXIT_DATA_SHARD,), run.text
    assert "error: data: shard shard-000002.tok block" in run.text
    assert "is corrupt: its xxh3-128 is" in run.text


def test_ranks_that_read_the_same_samples_leave_none_out(snapshot: Path, tmp_path: Path) -> None:
    bad = damaged_copy(snapshot, tmp_path / "bad", 1)
    settings = (f"data={bad}", "steps=10", "parallel={tensor: 2}", *LONG)
    run = Gang(tmp_path / "run", 2, settings).wait()
    assert run.codes == (EXIT_DATA_SHARD, EXIT_DATA_SHARD), run.text
    assert run.text.count("error: data: shard shard-000002.tok block 0 is corrupt") == 2


def test_what_cannot_be_read_is_refused(snapshot: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    changed.mkdir()
    said = json.loads((snapshot / "manifest.json").read_bytes())
    said["shard_tokens"] += 1
    (changed / "manifest.json").write_text(json.dumps(said))
    (tmp_path / "words.txt").write_bytes(b"1 2 3 " * 100)
    words = ByteTokenizer()
    words.info = words.info.model_copy(update={"name": "words", "vocab_size": 50_000})
    sources = small_sources([tmp_path / "words.txt"], tmp_path / "words", tokenizer=words.info)
    prepare(tmp_path / "words", sources, words, lambda _: None)
    cases = (
        (str(changed), "not a whole manifest"),
        (str(tmp_path / "words"), "has 50,000 tokens, and this model reads bytes"),
        (f"file://{tmp_path}", "has no manifest.json"),
    )
    for number, (source, message) in enumerate(cases):
        run = Gang(tmp_path / str(number), 1, ("steps=2", f"data={source}")).wait()
        assert run.codes == (EXIT_SETTINGS,), run.text
        assert message in run.text
