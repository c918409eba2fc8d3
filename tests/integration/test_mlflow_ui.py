"""MLflow's own pages in a browser through the real gateway: runs, a chart, artifacts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.local.kafka import EmbeddedKafka
from gangline.sdk import connect
from support.harnesses.browser import CHROMIUM, Browser, browser
from support.harnesses.mlflow_gateway import MlflowGateway, mlflow_gateway

mlflow = pytest.importorskip("mlflow")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")


@pytest.fixture(scope="module")
def served(
    kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MlflowGateway]:
    with mlflow_gateway(kafka.bootstrap, tmp_path_factory.mktemp("ui")) as running:
        yield running


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Browser]:
    with browser(tmp_path / "browser") as found:
        yield found


def pictures(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("GANGLINE_TEST_PICTURES", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def test_runs_charts_and_artifacts(
    served: MlflowGateway, shown: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", served.tokens["nlp"])
    mlflow.set_tracking_uri(served.tracking_uri("nlp"))
    client, folder = mlflow.MlflowClient(), pictures(tmp_path)
    experiment = client.create_experiment("sft of llamas")
    for number in range(3):
        run = client.create_run(experiment, run_name=f"llama-{number}")
        client.log_param(run.info.run_id, "lr", 10.0**-number)
        for step in range(30):
            client.log_metric(run.info.run_id, "loss", (number + 1) / (1 + step), step=step)
        client.log_text(run.info.run_id, "trained on two nodes", "texts/notes.txt")
        client.set_terminated(run.info.run_id)
    with connect(served.url, served.tokens["nlp"]) as user:
        shown.open(user.sign_in_url("/mlflow/teams/nlp/"))
    shown.waits("location.pathname === '/mlflow/teams/nlp/'")
    assert "#" not in shown.run("document.referrer")
    page = f"{served.tracking_uri('nlp')}/#/experiments/{experiment}"
    shown.open(f"{page}/runs")
    for name in ("llama-0", "llama-1", "llama-2"):
        shown.sees(name)
    shown.screenshot(folder / "runs.png")
    run_page = f"{page}/runs/{run.info.run_id}"
    shown.open(run_page)
    shown.sees("llama-2")
    shown.sees("lr")
    shown.screenshot(folder / "run.png")
    shown.open(f"{run_page}/model-metrics")
    shown.sees("loss")
    shown.waits("document.querySelectorAll('.js-plotly-plot .scatterlayer path').length > 0")
    shown.screenshot(folder / "chart.png")
    shown.open(f"{run_page}/artifacts/texts/notes.txt")
    shown.sees("trained on two nodes")
    shown.screenshot(folder / "artifacts.png")
    known = ("/users/current", "/assistant/", "/gateway-proxy")  # asked, and not offered
    assert [error for error in shown.errors if not any(path in error for path in known)] == []


def test_the_form_signs_in_and_a_used_code_does_not(
    served: MlflowGateway, shown: Browser, tmp_path: Path
) -> None:
    shown.open(f"{served.tracking_uri('nlp')}/")
    shown.sees("Sign in to Gangline")
    shown.screenshot(pictures(tmp_path) / "sign-in.png")
    shown.run(
        f"document.querySelector('[name=token]').value = '{served.tokens['nlp']}';"
        "document.querySelector('form').requestSubmit()"
    )
    shown.waits("location.pathname === '/mlflow/teams/nlp/'")
    assert shown.run("document.cookie") == ""
    asked = "fetch('ajax-api/2.0/mlflow/experiments/search?max_results=1').then(a => a.status)"
    shown.run(f"window.status_ = 0; {asked}.then(s => window.status_ = s)")
    assert shown.waits("window.status_") == 200
    with connect(served.url, served.tokens["nlp"]) as user:
        url = user.sign_in_url("/mlflow/teams/nlp/")
    shown.open("about:blank")
    shown.open(url)
    shown.waits("location.pathname === '/mlflow/teams/nlp/'")
    shown.open("about:blank")
    shown.open(url)
    shown.sees("was used")
