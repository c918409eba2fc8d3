"""Models: aliases, versions with evidence, verdicts, and the forms that move an alias."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from gangline_schemas.api.models import (
    Alias,
    Check,
    Drift,
    ModelDetail,
    ModelList,
    ModelRow,
    Move,
    Promotion,
    VersionRow,
)
from gangline_schemas.models import ColumnDrift, Finding, ServingReport, Verdict
from support.builders.console import console, csrf
from support.builders.registry import evaluation, gate

AT = datetime(2026, 11, 26, 2, tzinfo=UTC)
SHOWN = "/console/models/summarizer?team=nlp"
ALIAS = Alias(alias="champion", version=2, since=AT, rollback_to=1, drift=1, aged=True)
ROW: dict[str, Any] = {
    "team": "nlp", "model": "summarizer", "aliases": [ALIAS], "has_gate": True, "versions": 1,
    "newest_version": 3, "waiting": 0,
}  # fmt: skip
FINDING = Finding(subject="suite qa", verdict=Verdict.FAIL, text="is not <b>better</b>")
PROMOTION = Promotion(
    promotion=5, version=3, alias="champion", expected=2, baseline=2, user="ben", override=None,
    verdict=Verdict.FAIL, findings=[FINDING], moved=False, begun_at=AT, judged_at=AT,
)  # fmt: skip
MOVE = Move(
    number=6, alias="champion", from_version=1, to_version=2, kind="gate", by="ben", reason="",
    promotion=4, at=AT,
)  # fmt: skip
VERSION = VersionRow(
    version=3, checkpoint=None, snapshot=None, description="", user="ben", registered_at=AT,
    aliases=[], evaluations={"qa": evaluation("a")}, approvals=[], lost=False,
    serving=ServingReport(format="onnx", loads=False, size_bytes=1_500_000_000),
)  # fmt: skip
DETAIL = ModelDetail(
    **ROW, gate=gate(), gate_user="ana", gate_since=AT, version_list=[VERSION],
    promotions=[PROMOTION], moves=[MOVE], catalogue_behind=True,
)  # fmt: skip
DRIFT = Drift.model_validate({
    "alias": "champion", "version": 2, "snapshot": "tickets@x", "profiled": True, "made_at": AT,
    "age_days": 99.0, "limit_days": 90.0, "aged": True, "checks": [{
        "dataset": "tickets", "snapshot": "tickets@y", "baseline": "tickets@x", "at": AT,
        "found": 1, "columns": [ColumnDrift(column="length", kind="number", reasons=("moved",))],
        "unknown": "",
    }],
})  # fmt: skip
ANSWERS = {
    "GET /v1/models": ModelList(models=[ModelRow(**ROW)]),
    "GET /v1/models/summarizer": DETAIL,
    "GET /v1/models/summarizer/aliases/champion/drift": DRIFT,
    "GET /v1/models/summarizer/versions/3/check": Check(
        version=3, alias="champion", baseline=2, verdict=Verdict.FAIL, findings=[FINDING],
        comparing=0,
    ),
    "POST /v1/models/summarizer/aliases/champion/promotions?team=nlp": PROMOTION,
    "POST /v1/models/summarizer/aliases/champion/rollbacks?team=nlp": MOVE,
}  # fmt: skip


def test_lists_and_details_show_aliases_evidence_and_data() -> None:
    client, _ = console(ANSWERS)
    assert "champion → version 2" in client.get("/console/models").text
    text = client.get(SHOWN).text
    for shown in (
        "MLflow does not show the newest moves yet", "Roll back to 1", "qa 0.6", "99 days old",
        "length: moved", "onnx, 1.5 GB", "does not load", "is not &lt;b&gt;better&lt;/b&gt;",
    ):  # fmt: skip
        assert shown in text, shown


def test_no_models_says_how_to_get_one() -> None:
    client, _ = console({"GET /v1/models": ModelList(models=[])})
    assert "gangline models gate apply" in client.get("/console/models").text


def test_a_promotion_is_asked_with_the_version_that_was_shown() -> None:
    client, gateway = console(ANSWERS)
    page = client.get("/console/models/summarizer/move?alias=champion&version=3&team=nlp").text
    assert "although the gate does not pass" in page
    form = {"csrf": csrf(), "team": "nlp", "model": "summarizer", "alias": "champion",
            "version": "3", "expected": "2"}  # fmt: skip
    answer = client.post("/console/models/promote", data=form, follow_redirects=False)
    assert answer.status_code == 303
    assert gateway.asked[-1][2] == {"version": 3, "expected": 2}
    form |= {"override": "true", "reason": "broken suite"}
    client.post("/console/models/promote", data=form, follow_redirects=False)
    assert gateway.asked[-1][2]["override"] == {"person": "ana", "reason": "broken suite"}
    for wrong in ({"reason": " "}, {"expected": "none"}):
        assert client.post("/console/models/promote", data={**form, **wrong}).status_code == 422


def test_a_rollback_asks_first() -> None:
    client, gateway = console(ANSWERS)
    page = client.get("/console/models/summarizer/move?alias=champion&team=nlp").text
    assert "Roll champion back to version 1?" in page
    form = {"csrf": csrf(), "team": "nlp", "model": "summarizer", "alias": "champion",
            "expected": "2", "reason": "slow"}  # fmt: skip
    answer = client.post("/console/models/rollback", data=form, follow_redirects=False)
    assert answer.status_code == 303
    assert gateway.asked[-1][2] == {"expected": 2, "reason": "slow"}
