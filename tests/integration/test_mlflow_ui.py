"""MLflow's own pages in a browser through the real gateway: runs, a chart, artifacts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Response, expect

from gangline.local.kafka import EmbeddedKafka
from gangline.sdk import connect
from support.harnesses.console_page import WAIT_MS
from support.harnesses.mlflow_gateway import MlflowGateway, mlflow_gateway

mlflow = pytest.importorskip("mlflow")
NOT_OFFERED = ("/users/current", "/assistant/", "/gateway-proxy")
"""Routes that MLflow's pages ask for; the gateway has none of them."""


@pytest.fixture(scope="module")
def served(
    kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MlflowGateway]:
    with mlflow_gateway(kafka.bootstrap, tmp_path_factory.mktemp("ui")) as running:
        yield running


@pytest.fixture
def page(served: MlflowGateway, chromium: Browser) -> Iterator[Page]:
    """A page without cookies; it begins after the server, whose event loops need the thread."""
    with chromium.new_context(viewport={"width": 1400, "height": 900}) as context:
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        yield page


def shows(page: Page, text: str) -> None:
    """Wait until the page shows a text."""
    expect(page.locator("body")).to_contain_text(text, use_inner_text=True)


@pytest.mark.nightly
def test_runs_charts_and_artifacts(
    served: MlflowGateway, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[str] = []

    def note(answer: Response) -> None:
        if answer.status >= 400 and not any(path in answer.url for path in NOT_OFFERED):
            errors.append(f"{answer.status} {answer.url}")

    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("response", note)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", served.tokens["nlp"])
    mlflow.set_tracking_uri(served.tracking_uri("nlp"))
    client = mlflow.MlflowClient()
    experiment = client.create_experiment("sft of llamas")
    for number in range(3):
        run = client.create_run(experiment, run_name=f"llama-{number}")
        client.log_param(run.info.run_id, "lr", 10.0**-number)
        for step in range(30):
            client.log_metric(run.info.run_id, "loss", (number + 1) / (1 + step), step=step)
        client.log_text(run.info.run_id, "trained on two nodes", "texts/notes.txt")
        client.set_terminated(run.info.run_id)
    with connect(served.url, served.tokens["nlp"]) as user:
        page.goto(user.sign_in_url("/mlflow/teams/nlp/"), wait_until="commit")
    page.wait_for_function("location.pathname === '/mlflow/teams/nlp/'")
    assert "#" not in page.evaluate("document.referrer")
    runs = f"{served.tracking_uri('nlp')}/#/experiments/{experiment}/runs"
    page.goto(runs)
    for name in ("llama-0", "llama-1", "llama-2"):
        shows(page, name)
    run_page = f"{runs}/{run.info.run_id}"
    page.goto(run_page)
    shows(page, "llama-2")
    shows(page, "lr")
    page.goto(f"{run_page}/model-metrics")
    shows(page, "loss")
    expect(page.locator(".js-plotly-plot .scatterlayer path")).not_to_have_count(0)
    page.goto(f"{run_page}/artifacts/texts/notes.txt")
    shows(page, "trained on two nodes")
    assert errors == []
