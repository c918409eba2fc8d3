"""The `parallel` field: what it means at each size of the gang, and how a misfit is reported."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gangline_schemas.base import field_errors
from gangline_schemas.job import JobSpec
from gangline_schemas.parallel import Parallel, Shape

TRAINER = ["python", "-m", "gangline_worker.training"]


def spec(resources: dict[str, Any], parallel: dict[str, Any], **fields: Any) -> JobSpec:
    return JobSpec.model_validate(
        {"name": "a", "team": "nlp", "command": TRAINER, "resources": resources}
        | {"parallel": parallel, **fields}
    )


@pytest.mark.parametrize(
    ("parallel", "gpus", "shape"),
    [
        ({}, 8, Shape(replicas=8)),
        ({"shard": "auto"}, 8, Shape(shard=8)),
        ({"shard": "auto", "tensor": 2}, 8, Shape(shard=4, tensor=2)),
        ({"replicas": 2, "shard": "auto"}, 8, Shape(replicas=2, shard=4)),
        ({"shard": 2, "tensor": 2, "pipeline": 2}, 16, Shape(2, 2, 2, 2)),
        ({"replicas": 1, "tensor": 4}, 4, Shape(tensor=4)),
        ({"shard": 2, "expert": 4}, 8, Shape(replicas=4, shard=2, expert=4)),
    ],
)
def test_auto_is_what_the_others_leave(parallel: dict[str, Any], gpus: int, shape: Shape) -> None:
    assert Parallel.model_validate(parallel).shape(gpus) == shape
    assert shape.ranks == gpus
    assert spec({"gpus": gpus}, parallel).parallel == Parallel.model_validate(parallel)


@pytest.mark.parametrize(
    ("resources", "parallel", "field", "words"),
    [
        (
            {"gpus": 6},
            {"tensor": 4},
            "parallel",
            (
                "replicas auto x shard 1 x tensor 4 x pipeline 1 does not fit 6 GPUs; "
                "give resources.gpus: 8, or change one of the numbers"
            ),
        ),
        (
            {"gpus": 4},
            {"replicas": 1, "shard": 2},
            "parallel",
            "give resources.gpus: 2, or change one of the numbers",
        ),
        (
            {"gpus": 6},
            {"expert": 4},
            "parallel",
            "pipeline 1, with expert 4, does not fit 6 GPUs; give resources.gpus: 8",
        ),
        (
            {"gpus": 8, "min_gpus": 2},
            {"shard": "auto", "pipeline": 2},
            "parallel",
            (
                "does not fit 3, 5, 7 GPUs; "
                "give gpus: 8, min_gpus: 2 and gpu_counts: [2, 4, 6, 8] under resources"
            ),
        ),
        (
            {"gpus": 5, "min_gpus": 3},
            {"pipeline": 4},
            "parallel",
            "does not fit 3, 5 GPUs; give resources.gpus: 4 without min_gpus",
        ),
        (
            {"gpus": 16384, "min_gpus": 1},
            {"pipeline": 2},
            "parallel",
            "does not fit 1, 3, 5, 7, ... GPUs; list multiples of 2 alone as resources.gpu_counts",
        ),
        (
            {"gpus": 8, "min_gpus": 3},
            {"tensor": 2},
            "parallel",
            (
                "min_gpus (3) must be a multiple of tensor (2), as the GPUs of a worker lie on one "
                "node; give 2 or 4"
            ),
        ),
        (
            {"gpus": 8, "min_gpus": 2},
            {"tensor": 2, "pipeline": 2},
            "parallel",
            "does not fit 2, 6 GPUs; give gpus: 8, min_gpus: 4 and gpu_counts: [4, 8] under",
        ),
        (
            {"gpus": 8, "gpus_per_worker": 4},
            {"tensor": 8},
            "parallel",
            (
                "tensor (8) must divide resources.gpus_per_worker (4), as the GPUs of a tensor "
                "group lie on one node; give gpus_per_worker: 8, or leave it out"
            ),
        ),
        (
            {"gpus": 8, "gpus_per_worker": 1},
            {"tensor": 2},
            "parallel",
            "tensor (2) must divide resources.gpus_per_worker (1)",
        ),
        (
            {"gpus": 4},
            {"replicas": 2, "shard": 2, "expert": 3},
            "parallel",
            "replicas (2) x shard (2) must divide by expert (3)",
        ),
        ({"gpus": 4}, {"tensor": "auto"}, "parallel.tensor", "integer"),
        ({"gpus": 4}, {"tensor": 0}, "parallel.tensor", "greater than or equal to 1"),
        ({"gpus": 4}, {"tensors": 2}, "parallel.tensors", "there is no such field"),
    ],
)
def test_a_misfit_names_the_field_and_the_way_out(
    resources: dict[str, Any], parallel: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        spec(resources, parallel)
    (error,) = field_errors(caught.value)
    assert error.field == field
    assert words in error.message


@pytest.mark.parametrize(
    ("resources", "parallel", "together", "sizes"),
    [
        ({"gpus": 4}, {"shard": "auto"}, 1, [4]),
        ({"gpus": 8}, {"tensor": 4}, 4, [8]),
        ({"gpus": 8, "min_gpus": 2}, {"shard": "auto", "tensor": 2}, 2, [2, 4, 6, 8]),
        ({"workers": 2, "gpus_per_worker": 8}, {"tensor": 4}, 8, [16]),
    ],
)
def test_a_tensor_group_lies_on_one_node(
    resources: dict[str, Any], parallel: dict[str, Any], together: int, sizes: list[int]
) -> None:
    found = spec(resources, parallel)
    assert (found.gpus_per_worker, list(found.sizes)) == (together, sizes)
