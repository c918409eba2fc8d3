"""The same requests to the genuine `mlflow server` and to ours: every answer is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline.local.kafka import EmbeddedKafka
from support.builders.mlflow_requests import all_requests
from support.harnesses.genuine_mlflow import genuine_server
from support.harnesses.mlflow_process import mlflow_server
from support.harnesses.mlflow_replay import Replay, first_difference

pytest.importorskip("mlflow")

LEAST = 250


@pytest.mark.nightly
def test_every_answer_is_the_genuine_server_s(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    differences = []
    with (
        genuine_server(tmp_path / "genuine", "nlp") as url,
        mlflow_server(kafka.bootstrap, tmp_path / "ours") as server,
    ):
        genuine, ours = Replay(url, "nlp"), Replay(server.url, "nlp", server.token)
        asked = list(all_requests())
        for item in asked:
            difference = first_difference(genuine.ask(item), ours.ask(item))
            if difference:
                differences.append(f"{item}\n  {difference}")
        genuine.close()
        ours.close()
    assert len(asked) >= LEAST
    assert not differences, f"{len(differences)} of {len(asked)}:\n" + "\n".join(differences)
