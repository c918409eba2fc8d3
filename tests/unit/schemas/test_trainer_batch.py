"""A batch that the trainer cannot share out at every size of the gang is told with a way out."""

from __future__ import annotations

from typing import Any

import pytest

from gangline_schemas.job import JobSpec
from gangline_schemas.trainer_batch import cannot_share

TRAINER = ["python", "-m", "gangline_worker.training"]
ELASTIC = {"gpus": 8, "min_gpus": 2}


def told(resources: dict[str, Any], **fields: Any) -> str | None:
    command = {} if "run" in fields else {"command": TRAINER}
    spec = {"name": "a", "team": "nlp", "resources": resources} | command | fields
    return cannot_share(JobSpec.model_validate(spec))


@pytest.mark.parametrize(
    ("resources", "settings", "words"),
    [
        (
            ELASTIC,
            {"batch_size": 8},
            (
                "the trainer cannot share out batch_size 8 among 3, 5, 6 or 7 GPUs, which the gang "
                "may have; give gpu_counts: [2, 4, 8] under resources, or another batch_size"
            ),
        ),
        (
            {"gpus": 6, "min_gpus": 2},
            {"batch_size": 8},
            (
                "among 3, 5 or 6 GPUs, which the gang may have; "
                "give gpus: 4, min_gpus: 2 and gpu_counts: [2, 4] under resources"
            ),
        ),
        (
            ELASTIC | {"gpu_counts": [2, 6, 8]},
            {"batch_size": 8},
            "among 6 GPUs, which the gang may have; give gpu_counts: [2, 8] under resources",
        ),
        (
            {"gpus": 4, "min_gpus": 3},
            {"batch_size": 8},
            "among 3 GPUs, which the gang may have; give gpus: 4 without min_gpus",
        ),
        (
            {"gpus": 8, "min_gpus": 2},
            {"batch_size": 8, "accumulation": 2},
            (
                "batch_size 8 in 2 backward passes (accumulation) among 3, 5, 6, 7, ... GPUs, "
                "which the gang may have; give gpus: 4, min_gpus: 2 and gpu_counts: [2, 4]"
            ),
        ),
        (
            {"gpus": 3},
            {"batch_size": 8},
            "batch_size 8 among 3 GPUs; choose a number of GPUs, or a batch_size",
        ),
    ],
)
def test_it_names_the_sizes_and_the_way_out(
    resources: dict[str, Any], settings: dict[str, Any], words: str
) -> None:
    assert words in (told(resources, hyperparameters=settings) or "")


@pytest.mark.parametrize(
    ("resources", "fields"),
    [
        (ELASTIC | {"gpu_counts": [2, 4, 8]}, {"hyperparameters": {"batch_size": 8}}),
        (ELASTIC, {"hyperparameters": {"batch_size": 840}}),
        ({"gpus": 4}, {"hyperparameters": {"batch_size": 8, "accumulation": 2}}),
        (ELASTIC, {}),
        (ELASTIC, {"hyperparameters": {"batch_size": "auto"}}),
        (ELASTIC, {"hyperparameters": {"batch_size": True}}),
        (ELASTIC, {"hyperparameters": {"batch_size": 0}}),
        (ELASTIC, {"command": ["python", "x.py"], "hyperparameters": {"batch_size": 8}}),
        (ELASTIC, {"run": "python x.py", "hyperparameters": {"batch_size": 8}}),
        (ELASTIC, {"run": "echo 'no end", "hyperparameters": {"batch_size": 8}}),
        (ELASTIC, {"run": "python -m gangline_worker.training --set batch_size=$B"}),
    ],
)
def test_it_says_nothing_where_it_fits_or_nobody_can_tell(
    resources: dict[str, Any], fields: dict[str, Any]
) -> None:
    assert told(resources, **fields) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"command": [*TRAINER, "--set", "lr=1", "batch_size=8"]},
        {"command": [*TRAINER, "--set=batch_size=8"], "hyperparameters": {"batch_size": 840}},
        {"command": [*TRAINER, "--set", "batch_size=840", "--set", "batch_size=8"]},
        {"command": [*TRAINER, "--config", "c.yaml"], "hyperparameters": {"batch_size": "8"}},
        {"run": "cd x && python -m gangline_worker.training  # ours", "hyperparameters":
            {"batch_size": 8}},
    ],
)  # fmt: skip
def test_the_batch_is_found_where_the_trainer_would_take_it_from(fields: dict[str, Any]) -> None:
    assert "batch_size 8 among 3, 5, 6 or 7 GPUs" in (told(ELASTIC, **fields) or "")
