"""The trainer with the agent's end of its line: reported shards, requests, ended orphans."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import pytest

from gangline_schemas.checkpoint import RankManifest
from gangline_schemas.events.heartbeats import RankActivity
from gangline_schemas.events.workers import SampleRange
from gangline_schemas.rank_protocol import (
    Control,
    Doing,
    FromRank,
    Hello,
    LeaveOutSamples,
    Report,
    ShardReady,
)
from gangline_worker.checkpoint.commit import committed
from gangline_worker.checkpoint.files import read_verified
from gangline_worker.data.errors import EXIT_DATA_SHARD
from gangline_worker.data.left_out import LEFT_OUT_ENV
from support.fakes.agent_end import AgentEnd
from support.harnesses.gang import (
    BAD_LOSS_ENV,
    EXIT_AGENT,
    NO_DATA_ENV,
    SLOW_DATA_ENV,
    SLOW_DATA_S,
    SLOW_LAYER_ENV,
    SLOW_LAYER_S,
    Gang,
)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentEnd]:
    end = AgentEnd(tmp_path)
    yield end
    end.hang_up()


def gang_of(agent: AgentEnd, directory: Path, *settings: str) -> Gang:
    env = {"GANGLINE_AGENT_SOCKET": agent.path, "GANGLINE_RANK_TOKEN": "t0k"}
    return Gang(directory, 2, settings, extra_env=env)


def ready(said: Sequence[FromRank], step: int | None = None) -> list[ShardReady]:
    found = [message for message in said if isinstance(message, ShardReady)]
    return [message for message in found if step is None or message.step == step]


def reported(said: Sequence[FromRank], metric: str) -> dict[int, float | None]:
    found: dict[int, float | None] = {}
    for message in said:
        if isinstance(message, Report) and metric in message.metrics:
            values = zip(message.step, message.metrics[metric], strict=True)
            found.update({step: value for step, value in values if value is not None})
    return found


def test_shards_and_steps_reach_the_agent(agent: AgentEnd, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    run = gang_of(agent, directory, "steps=6", "checkpoint_every_steps=3").wait()
    assert run.codes == (0, 0), run.text
    said = agent.wait_for(lambda said: len(ready(said, 6)) == 2)
    hellos = {message.rank for message in said if isinstance(message, Hello)}
    assert hellos == {0, 1}
    for metric in ("loss", "lr", "grad_norm", "tokens_per_s", "mfu", "step_s", "data_wait_s"):
        assert sorted(reported(said, metric)) == [1, 2, 3, 4, 5, 6], metric
    assert set(reported(said, "mfu_peak_measured").values()) == {1.0}, "CPUs have no data sheet"
    assert reported(said, "loss") == run.losses()
    for message in ready(said):
        folder = directory / "checkpoints"
        read_verified(folder / message.shard.key, message.shard)
        raw = bytes(read_verified(folder / message.manifest.key, message.manifest))
        manifest = RankManifest.decode(raw)
        assert (manifest.rank, manifest.step) == (message.rank, message.step)
        assert manifest.shard.xxh3 == message.shard.xxh3
        assert message.metrics["loss"] == run.losses()[message.step]
    assert not committed(directory / "checkpoints"), "committing is the service's, not the rank's"


def test_wishes_of_the_agent_are_met(agent: AgentEnd, tmp_path: Path) -> None:
    gang = gang_of(agent, tmp_path / "run", "steps=100000")
    gang.wait_for(r"step 2/")
    agent.ask(Control(checkpoint_request=1))
    agent.wait_for(lambda said: len(ready(said)) == 2)
    agent.ask(Control(checkpoint_request=1, stop="preempted"))
    run = gang.wait()
    assert run.codes == (0, 0), run.text
    assert "preempted" in run.outputs[0]
    said = agent.wait_for(lambda said: len(ready(said)) == 4)
    steps = sorted({message.step for message in ready(said)})
    assert len(steps) == 2, "both ranks saved at the same two steps"
    assert f"stopped after step {steps[1]}" in run.outputs[0]


def test_an_interval_that_the_agent_changes_is_followed_while_training(
    agent: AgentEnd, tmp_path: Path
) -> None:
    gang = gang_of(agent, tmp_path / "run", "steps=100000", "checkpoint_interval_s=600")
    gang.wait_for(r"step 2/")
    agent.ask(Control(interval_s=0.01))
    agent.wait_for(lambda said: len(ready(said)) >= 4)
    agent.ask(Control(interval_s=0.01, stop="cancelled"))
    run = gang.wait()
    assert run.codes == (0, 0), run.text


def test_no_save_begins_while_as_many_as_may_wait_lie_before_the_store(
    agent: AgentEnd, tmp_path: Path
) -> None:
    gang = gang_of(agent, tmp_path / "run", "steps=100000", "log_every_steps=1")
    gang.wait_for(r"step 2/")
    agent.ask(Control(checkpoint_request=1, behind=True))
    gang.wait_for(r"no save at step \d+: earlier ones are being written or stored")
    agent.ask(Control(checkpoint_request=1))
    said = agent.wait_for(lambda said: len(ready(said)) == 2)
    assert len({message.step for message in ready(said)}) == 1, "the wish was kept, and met once"
    agent.ask(Control(checkpoint_request=1, behind=True, stop="cancelled"))
    run = gang.wait()
    assert run.codes == (0, 0), run.text
    agent.wait_for(lambda said: len(ready(said)) == 4)  # the last save is made all the same
    assert run.text.count("no save at step") == 1


def test_ranks_leave_when_their_agent_is_gone(agent: AgentEnd, tmp_path: Path) -> None:
    gang = gang_of(agent, tmp_path / "run", "steps=100000")
    gang.wait_for(r"step 2/")
    agent.hang_up()
    run = gang.wait()
    assert run.codes == (EXIT_AGENT, EXIT_AGENT), run.text
    assert not list((tmp_path / "run").rglob("rank-*.bin")), "nothing it saved could count"


def test_a_failing_disk_is_reported_and_training_goes_on(agent: AgentEnd, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    blocked = directory / "checkpoints" / "attempt-0001"
    blocked.parent.mkdir(parents=True)
    blocked.write_text("no folder")
    gang = gang_of(agent, directory, "steps=100000", "checkpoint_every_steps=2")
    agent.wait_for(lambda said: bool(reported(said, "checkpoint_failures")))
    blocked.unlink()
    agent.wait_for(lambda said: len(ready(said)) >= 2)
    agent.ask(Control(stop="cancelled"))
    run = gang.wait()
    assert run.codes == (0, 0), run.text
    assert "training continues" in run.text


def work_of(said: Sequence[FromRank]) -> tuple[list[float], list[float]]:
    """What ranks 0 and 1 worked in each step; rank 0 alone reports the loss."""
    found: tuple[list[float], list[float]] = ([], [])
    for message in said:
        if isinstance(message, Report) and "busy_s" in message.metrics:
            values = [value for value in message.metrics["busy_s"] if value is not None]
            found[0 if "loss" in message.metrics else 1].extend(values)
    return found


@pytest.mark.parametrize("more", [(), ("parallel={tensor: 2}",)], ids=["fsdp", "tensor"])
def test_a_rank_with_slow_layers_works_longer_and_who_waits_for_it_does_not(
    agent: AgentEnd, tmp_path: Path, more: tuple[str, ...]
) -> None:
    env = {"GANGLINE_AGENT_SOCKET": agent.path, "GANGLINE_RANK_TOKEN": "t0k", SLOW_LAYER_ENV: "1"}
    run = Gang(tmp_path / "run", 2, ("steps=9", *more), extra_env=env).wait()
    assert run.codes == (0, 0), run.text
    said = agent.wait_for(lambda said: min(map(len, work_of(said))) == 9)
    waits, slow = (median(work) for work in work_of(said))
    assert slow >= 2 * SLOW_LAYER_S, "it has two layers"
    assert waits < slow / 2


def test_the_longest_wait_for_data_of_each_step_is_told_with_its_loss(
    agent: AgentEnd, tmp_path: Path
) -> None:
    env = {"GANGLINE_AGENT_SOCKET": agent.path, "GANGLINE_RANK_TOKEN": "t0k", SLOW_DATA_ENV: "1"}
    settings = ("steps=2", "data_ahead=1")
    run = Gang(tmp_path / "run", 2, settings, extra_env=env).wait()
    assert run.codes == (0, 0), run.text

    def waits(said: Sequence[FromRank]) -> list[dict[int, float | None]]:
        reports = [message for message in said if isinstance(message, Report)]
        return [
            reported([message for message in reports if ("loss" in message.metrics) == first], name)
            for first, name in ((True, "data_wait_s"), (False, "data_wait_s"), (True, "busy_s"))
        ]

    said = agent.wait_for(lambda said: [len(found) for found in waits(said)] == [2, 2, 2])
    longest, slow, own = ([value or 0.0 for value in found.values()] for found in waits(said))
    assert max(longest) == max(slow) > SLOW_DATA_S / 5, "it is that of the other rank, to the bit"
    assert all(told >= waited for told, waited in zip(longest, slow, strict=True))
    said_doing = [message.activity for message in agent.said if isinstance(message, Doing)]
    assert said_doing.count("waiting") in {1, 2}, "by the rank that waits, in steps that wait long"
    assert said_doing[-2:] == ["checkpointing", "checkpointing"]
    assert min(own) < SLOW_DATA_S / 5, "to wait for the other rank is no work"


def without_data(agent: AgentEnd, directory: Path, after: str) -> Gang:
    """A gang of which one rank has no more data: its number, after how many batches, the error."""
    env = {"GANGLINE_AGENT_SOCKET": agent.path, "GANGLINE_RANK_TOKEN": "t0k", NO_DATA_ENV: after}
    return Gang(directory, 2, ("steps=100000",), extra_env=env)


def test_what_is_asked_of_ranks_that_wait_for_data_of_one_is_heeded_meanwhile(
    agent: AgentEnd, tmp_path: Path
) -> None:
    gang = without_data(agent, tmp_path / "run", "1 3")
    agent.wait_for(lambda said: Doing(activity=RankActivity.WAITING) in said)
    agent.ask(Control(checkpoint_request=1))
    agent.wait_for(lambda said: len(ready(said, 3)) == 2)
    agent.ask(Control(checkpoint_request=1, stop="spot_notice"))
    run = gang.wait()
    assert run.codes == (0, 0), run.text
    assert "stopped after step 3: spot_notice" in run.outputs[0]
    assert len(ready(agent.said)) == 2, "step 3 was saved before"


def test_ranks_that_wait_for_their_first_data_leave_when_asked(
    agent: AgentEnd, tmp_path: Path
) -> None:
    gang = without_data(agent, tmp_path / "run", "1 0")
    agent.wait_for(lambda said: Doing(activity=RankActivity.WAITING) in said)
    agent.ask(Control(stop="preempted"))
    run = gang.wait()
    assert run.codes == (0, 0), run.text
    assert "stopped after step 0: preempted" in run.outputs[0]
    assert not ready(agent.said), "there is nothing to save"


def test_before_a_rank_ends_for_its_data_all_of_them_save(agent: AgentEnd, tmp_path: Path) -> None:
    run = without_data(agent, tmp_path / "run", "1 3 it was cut").wait()
    assert run.codes[1] == EXIT_DATA_SHARD, run.text
    said = agent.wait_for(lambda said: len(ready(said)) == 2)
    assert {message.step for message in ready(said)} == {3}
    assert "it was cut" in run.outputs[1]


def test_all_ranks_name_the_same_samples_of_a_spike_and_leave_them_out_at_any_world_size(
    agent: AgentEnd, tmp_path: Path
) -> None:
    spike = {"window": 16, "steps": 3, "then": "restart"}
    env = {
        "GANGLINE_AGENT_SOCKET": agent.path,
        "GANGLINE_RANK_TOKEN": "t0k",
        "GANGLINE_TRAINING": json.dumps({"on_spike": spike, "leave_out": {"before": 1}}),
        BAD_LOSS_ENV: "0 18 9 50",
    }
    run = Gang(tmp_path / "spike", 2, ("steps=21",), extra_env=env).wait()
    assert max(run.losses()) == 20, run.text

    def named(said: Sequence[FromRank]) -> list[tuple[SampleRange, ...]]:
        return [message.left_out for message in said if isinstance(message, LeaveOutSamples)]

    samples = (SampleRange(first=16 * 8, count=4 * 8),)  # of the steps 17 to 20
    assert named(agent.wait_for(lambda said: len(named(said)) == 2)) == [samples, samples]

    env = {LEFT_OUT_ENV: json.dumps([part.data() for part in samples])}
    two, one = (
        Gang(tmp_path / str(ranks), ranks, ("steps=21",), extra_env=env).wait().losses()
        for ranks in (2, 1)
    )
    assert [two[step] for step in range(1, 17)] == [run.losses()[step] for step in range(1, 17)]
    assert two[17] != run.losses()[17]
    assert one == pytest.approx(two, abs=1e-5)
