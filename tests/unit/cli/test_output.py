"""`--json` prints values with the names of their fields."""

from __future__ import annotations

import json

import pytest

from gangline.output import Output
from gangline_schemas.api.questions import StartsOn, WhatIf
from gangline_schemas.team_limits import GpuTypeLimit

NODES = [{"node_id": "node-1", "gpus": 2, "indexes": [0, 1]}]
ANSWER = WhatIf(
    starts="now",
    gpus=2,
    nodes=(StartsOn(node_id="node-1", gpus=2, indexes=(0, 1)),),
    cost_gpu_seconds=1.5,
)
LIMIT = GpuTypeLimit(gpu_type="h100", gpu_limit=4)


def test_a_document_has_the_names_of_fields(capsys: pytest.CaptureFixture[str]) -> None:
    Output(json=True).show([ANSWER], "")
    (shown,) = json.loads(capsys.readouterr().out)
    assert (shown["nodes"], shown["cost_gpu_seconds"]) == (NODES, 1.5)
    assert shown.keys() == WhatIf.model_fields.keys()


def test_a_line_of_a_stream_has_the_names_of_fields(capsys: pytest.CaptureFixture[str]) -> None:
    Output(json=True).line({"limits": (LIMIT,), "answer": ANSWER}, "")
    shown = json.loads(capsys.readouterr().out)
    assert shown["limits"] == [{"gpu_type": "h100", "gpu_limit": 4}]
    assert shown["answer"]["nodes"] == NODES
