"""Settings, their sources and messages, the learning rate and what ranks agree on."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import pytest
import yaml

from gangline_worker.training.__main__ import submitted
from gangline_worker.training.agreement import StepNews, summarize
from gangline_worker.training.config import ConfigError, TrainConfig, read_settings
from gangline_worker.training.flops import flops_per_token
from gangline_worker.training.layout import lay_out
from gangline_worker.training.saving import CheckpointSchedule
from gangline_worker.training.schedule import lr_at
from gangline_worker.training.shapes import hidden_width


def test_the_later_source_wins(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text("lr: 0.1\nsteps: 7\nseed: 1\n")
    found = read_settings(file, {"lr": 0.2, "seed": 2}, ["lr=3e-1", "recompute=true"])
    assert (found.lr, found.steps, found.seed, found.recompute) == (0.3, 7, 2, True)


@pytest.mark.parametrize(
    ("job", "given", "parallel", "copies"),
    [
        ("ddp", "{}", None, True),
        ("fsdp", "{}", None, False),
        (None, "{}", None, False),
        ("ddp", '{"strategy": "fsdp"}', None, False),
        ("ddp", "{}", '{"shard": 2}', False),
        ("ddp", '{"parallel": {"shard": 2}}', None, False),
    ],
    ids=["job", "fsdp", "none", "hyperparameter", "parallel", "hyperparameter parallel"],
)
def test_the_jobs_strategy_holds_where_nothing_else_says_how_ranks_are_laid_out(
    monkeypatch: pytest.MonkeyPatch,
    job: str | None,
    given: str,
    parallel: str | None,
    copies: bool,
) -> None:
    monkeypatch.setenv("GANGLINE_HYPERPARAMETERS", given)
    for name, value in (("GANGLINE_STRATEGY", job), ("GANGLINE_PARALLEL", parallel)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert lay_out(read_settings(None, submitted(), []), 0, 2).whole_copies == copies


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["lr=fast"], r"lr: .*number"),
        (["lr"], r"--set lr: write it as name=value"),
        (["data_suffix=*.txt"], r"--set data_suffix=\*\.txt: .* is no YAML; .* '\*\.txt'$"),
        (["data=@it's"], r"--set data=@it's: .* is no YAML; .* '@it''s'$"),
        (["learning_rate=1"], r"learning_rate: .*known are .*\blr\b"),
        (["stepz=1"], r"stepz: there is no such field; did you mean steps\?$"),
        (["heads=3"], r"dim \(128\) must divide by 2 \* heads \(6\)"),
        (["steps=0"], r"steps: "),
        (["lr=.nan"], r"lr: "),
    ],
)
def test_a_wrong_setting_is_named(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_settings(None, {}, overrides)


def test_the_docs_have_all_settings_and_their_defaults() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/trainer.md").read_text("utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    said = {row[0].removeprefix("| ").strip("`"): row[1] for row in rows}
    assert {name: yaml.safe_load(text) for name, text in said.items()} == {
        name: "none" if field.default is None else field.default
        for name, field in TrainConfig.model_fields.items()
    }
    assert list(said) == list(TrainConfig.model_fields)
    [example] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert TrainConfig(**yaml.safe_load(example)["hyperparameters"]).layers == 8


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(ConfigError, match=r"list\.yaml: must be a mapping"):
        read_settings(tmp_path / "list.yaml", {}, [])
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        read_settings(tmp_path / "none.yaml", {}, [])


def test_the_digest_tells_settings_apart() -> None:
    assert TrainConfig().digest() == TrainConfig().digest()
    assert TrainConfig().digest() != TrainConfig(lr=1e-3).digest()


def test_the_rate_warms_up_and_falls_to_its_minimum() -> None:
    config = TrainConfig(lr=1.0, min_lr_ratio=0.1, warmup_steps=10, steps=110)
    rates = [lr_at(step, config) for step in range(1, 111)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == max(rates) == 1.0
    assert rates[59] == pytest.approx(0.55)
    assert rates[-1] == pytest.approx(0.1)
    assert all(a > b for a, b in itertools.pairwise(rates[9:]))
    assert lr_at(200, config) == pytest.approx(0.1)
    assert lr_at(1, TrainConfig(lr=1.0, warmup_steps=0, steps=1)) == pytest.approx(0.1)


def test_a_save_is_due_by_time_on_rank_0_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANGLINE_CHECKPOINT_INTERVAL_S", "30")
    now = [100.0]
    schedule = CheckpointSchedule(TrainConfig(), clock=lambda: now[0])
    assert not schedule.wanted(1, rank=0)
    now[0] += 30
    assert schedule.wanted(2, rank=0)
    assert not schedule.wanted(2, rank=1)
    schedule.saved()
    assert not schedule.wanted(3, rank=0)
    schedule.request()
    assert schedule.wanted(3, rank=1), "what was asked for holds on every rank"
    assert schedule.wanted(4, rank=1), "and until it is met"
    schedule.saved()
    assert not schedule.wanted(5, rank=1)


def test_an_interval_that_changes_while_the_rank_runs_counts_from_the_last_save() -> None:
    now, changed = [100.0], [0.0]
    schedule = CheckpointSchedule(
        TrainConfig(checkpoint_interval_s=600), lambda: now[0], lambda: changed[0] or None
    )
    now[0] += 60
    assert not schedule.wanted(1, rank=0)
    changed[0] = 60.0
    assert schedule.wanted(2, rank=0)
    assert not schedule.wanted(2, rank=1)
    changed[0] = 61.0
    assert not schedule.wanted(3, rank=0)


def test_the_loss_is_of_ranks_where_the_model_ends() -> None:
    earlier = StepNews(0.0, 0.2, has_loss=False)
    assert summarize([earlier, earlier, StepNews(2.0, 0.1), StepNews(4.0, 0.1)]).loss == 3.0
    assert math.isnan(summarize([earlier, StepNews(math.nan, 0.1)]).loss)
    assert math.isnan(summarize([earlier, earlier]).loss), "before the first step"


def test_of_experts_those_count_that_a_token_goes_to() -> None:
    config = TrainConfig(experts=4, experts_per_token=1)
    each = 6.0 * config.layers * 3 * config.dim * hidden_width(config.dim)
    router = 6.0 * config.layers * 4 * config.dim
    assert flops_per_token(config) == flops_per_token(TrainConfig()) + router
    two = config.model_copy(update={"experts_per_token": 2})
    assert flops_per_token(two) == flops_per_token(config) + each


def test_one_rank_with_bad_weights_is_enough_for_all_to_go_back() -> None:
    assert not summarize([StepNews(1.0, 0.1), StepNews(1.0, 0.1)]).bad_weights
    assert summarize([StepNews(1.0, 0.1), StepNews(1.0, 0.1, bad_weights=True)]).bad_weights


def test_all_wait_for_the_data_of_one_rank() -> None:
    sound = StepNews(1.0, 0.1)
    found = summarize([sound, StepNews(1.0, 0.1, waits=True), StepNews(1.0, 0.1, no_data=True)])
    assert (found.waits, found.no_data) == (True, True)
    assert (summarize([sound]).waits, summarize([sound]).no_data) == (False, False)


def test_one_rank_is_enough_to_stop_all() -> None:
    news = [StepNews(1.0, 0.1), StepNews(2.0, 0.3, stop=True), StepNews(6.0, 0.2, saving=True)]
    found = summarize(news)
    assert found.loss == 3.0
    assert found.data_wait_s == 0.3
    assert (found.stop, found.lost, found.wants_checkpoint, found.saving) == (
        True,
        False,
        False,
        True,
    )
