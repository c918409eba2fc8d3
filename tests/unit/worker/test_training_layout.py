"""Where ranks stand, and what is refused before they meet."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from gangline_schemas.parallel import Parallel
from gangline_worker.training.config import ConfigError, TrainConfig, read_settings
from gangline_worker.training.layout import lay_out

HALVES = {"shard": 2, "tensor": 2, "pipeline": 2}


def settings(parallel: dict[str, Any] | None = None, **others: Any) -> TrainConfig:
    return TrainConfig.model_validate({"parallel": parallel, **others})


def test_ranks_of_one_model_read_the_same_samples() -> None:
    config = settings(HALVES, accumulation=2)
    places = [lay_out(config, rank, 8) for rank in range(8)]
    assert [place.data_rank for place in places] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [place.stage for place in places] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [place.first_stage for place in places] == [True] * 4 + [False] * 4
    assert [place.last_stage for place in places] == [False] * 4 + [True] * 4


def test_stages_share_out_all_layers_in_order() -> None:
    config = settings({"pipeline": 3}, layers=6, accumulation=4)
    layers = [lay_out(config, rank, 3).layers(6) for rank in range(3)]
    assert [list(part) for part in layers] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("config", "ranks", "copies"),
    [
        (settings(), 4, False),
        (settings(strategy="ddp"), 4, True),
        (settings(strategy="ddp"), 1, True),
        (settings({"replicas": "auto"}), 4, True),
        (settings({"replicas": "auto"}), 1, False),
        (settings({"replicas": 2, "shard": 2}), 4, False),
        (settings({"tensor": 2}, strategy="fsdp"), 4, False),
    ],
)
def test_whole_copies_are_ddp(config: TrainConfig, ranks: int, copies: bool) -> None:
    assert lay_out(config, 0, ranks).whole_copies is copies


@pytest.mark.parametrize(
    ("config", "ranks", "message"),
    [
        (
            settings({"tensor": 2, "pipeline": 2}),
            6,
            r"^parallel: replicas auto x shard 1 x tensor 2 x pipeline 2 does not fit 6 GPUs; give",
        ),
        (settings({"tensor": 2}, strategy="ddp"), 2, r"strategy: ddp .* parallel decides alone"),
        (settings({"tensor": 8}), 8, r"parallel\.tensor \(8\) must divide heads \(4\)"),
        (
            settings({"tensor": 4}, seq_len=30),
            4,
            r"parallel\.tensor \(4\) must divide seq_len \(30\)",
        ),
        (
            settings({"tensor": 3}, heads=3, dim=36, seq_len=129),
            3,
            r"must divide the vocabulary \(256\)",
        ),
        (settings({"pipeline": 3}), 3, r"parallel\.pipeline \(3\) must divide layers \(4\)"),
        (
            settings({"pipeline": 2}),
            2,
            r"accumulation \(1\) is below parallel\.pipeline \(2\): .*give 2 or more",
        ),
        (
            settings({"tensor": 2}, batch_size=3),
            4,
            r"batch_size \(3\) does not divide by 4 GPUs / 2 \(tensor x pipeline\); .*of 2, or",
        ),
        (
            settings({"pipeline": 2}, accumulation=3),
            2,
            r"batch_size \(16\) does not divide by 2 GPUs / 2 \(tensor x pipeline\) x accumul",
        ),
        (settings({"expert": 2}), 2, r"parallel\.expert \(2\) must divide experts \(0\)"),
        (
            settings({"expert": 2}, experts=3),
            2,
            r"parallel\.expert \(2\) must divide experts \(3\); give experts a multiple of 2",
        ),
        (
            settings({"tensor": 2}, experts=4),
            2,
            r"parallel\.tensor \(2\) does not go with experts \(4\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_a_way_out(
    config: TrainConfig, ranks: int, message: str
) -> None:
    for rank in range(ranks):
        with pytest.raises(ConfigError, match=message):
            lay_out(config, rank, ranks)


@pytest.mark.parametrize(
    ("config", "sizes", "message"),
    [
        (
            settings(batch_size=8),
            range(2, 9),
            (
                "batch_size (8) does not divide by 3, 5, 6, 7 GPUs, which the gang may have; "
                "give gpus: 8, min_gpus: 2 and gpu_counts: [2, 4, 8] under resources, "
                "or another batch_size"
            ),
        ),
        (settings(batch_size=8), [3, 4], "give resources.gpus: 4 without min_gpus, or another"),
        (
            settings(batch_size=8, accumulation=2),
            range(2, 9),
            (
                "by 3, 5, 6, 7, ... GPUs x accumulation (2), which the gang may have; "
                "give gpus: 4, min_gpus: 2 and gpu_counts: [2, 4] under resources"
            ),
        ),
        (settings(batch_size=7), range(2, 5), "give a batch_size that is a multiple of 2, or"),
        (
            settings(batch_size=2**14 * 3**4),
            range(1, 1000),
            "list numbers by which it divides alone as resources.gpu_counts",
        ),
        (
            settings({"pipeline": 2}, batch_size=4, accumulation=2),
            [4, 8],
            (
                "by 8 GPUs / 2 (tensor x pipeline) x accumulation (2), which the gang may have; "
                "give resources.gpus: 4 without min_gpus"
            ),
        ),
        (settings({"pipeline": 2}), [2, 3, 4], "pipeline 2 does not fit 3 GPUs; give gpus: 4"),
    ],
)
def test_an_elastic_gang_is_refused_for_a_size_that_it_may_have(
    config: TrainConfig, sizes: Sequence[int], message: str
) -> None:
    """Whichever of its sizes it starts with; of many, the first and the last."""
    for world_size in sizes if len(sizes) < 10 else (sizes[0], sizes[-1]):
        with pytest.raises(ConfigError, match=re.escape(message)):
            lay_out(config, 0, world_size, sizes)


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (settings(batch_size=840), range(2, 9)),
        (settings(batch_size=8), [2, 4, 8]),
        (settings({"pipeline": 2}, batch_size=8, accumulation=2), [4, 8]),
    ],
)
def test_a_batch_that_divides_at_every_size_is_laid_out(
    config: TrainConfig, sizes: Sequence[int]
) -> None:
    for world_size in sizes:
        assert lay_out(config, 0, world_size, sizes).shape.ranks == world_size


def test_the_layout_can_be_set_on_the_command_line() -> None:
    found = read_settings(None, {"parallel": {"shard": 2}}, ["parallel={shard: auto, tensor: 2}"])
    assert found.parallel == Parallel(shard="auto", tensor=2)
    with pytest.raises(ConfigError, match=r"parallel\.tensor: .*greater than or equal to 1"):
        read_settings(None, {}, ["parallel={tensor: 0}"])
    with pytest.raises(ConfigError, match=r"experts_per_token \(2\) is above experts \(1\)"):
        read_settings(None, {}, ["experts=1"])
