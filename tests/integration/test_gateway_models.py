"""Routes of models: the whole way from a gate to a rollback, and what each token may do."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gangline_bus.codec import decode
from gangline_gateway.registry_state import registry_of
from gangline_gateway.routes import models
from gangline_registry.core.profile import write_profile
from gangline_registry.core.profiling import profile_of
from gangline_schemas.catalog import Topic
from gangline_schemas.events.checkpoints import CheckpointPromoted
from gangline_schemas.events.registry import VersionBegun
from gangline_schemas.events.requests import CheckpointPinRequested
from support.builders.gateway import GatewayHarness
from support.fixtures.gateway_http import ADMIN, NLP, VISION, harness, http_client, problem, submit

__all__ = ["harness", "http_client"]  # fixtures are used by being in this module
OLD, NEW = (f"tickets@sha256-{digit * 64}" for digit in "12")


def gate(model: str, **fields: Any) -> dict[str, Any]:
    return {
        "team": "nlp", "model": model, "aliases": ["champion"], "baseline": "current",
        "first": "accept", "checkpoint": "any",
        "suites": {"qa": {"rule": "better", "min_items": 10}}, **fields,
    }  # fmt: skip


class Model:
    """One model of team nlp, by HTTP."""

    def __init__(self, client: httpx.Client, name: str, **fields: Any) -> None:
        self.client, self.name, self.path = client, name, f"/v1/models/{name}"
        client.put(f"{self.path}/gate", headers=NLP, json=gate(name, **fields)).raise_for_status()

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.client.post(f"{self.path}/{path}", headers=NLP, json=body)
        assert answer.status_code == 201, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def get(self, path: str = "") -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(self.path + path, headers=NLP).json()
        return found

    def version(self, number: int, right: int, **fields: Any) -> None:
        """A version with 100 answers, the first of which are right."""
        self.post("versions", {"version": number, **fields})
        scores = {f"q{item}": float(item < right) for item in range(100)}
        self.post(f"versions/{number}/evaluations", {"suite": "qa", "scores": scores})

    def promote(self, number: int, **fields: Any) -> dict[str, Any]:
        return self.post("aliases/champion/promotions", {"version": number, **fields})

    @property
    def champion(self) -> int:
        found: int = self.get()["aliases"][0]["version"]
        return found


def test_from_a_gate_to_a_rollback(http_client: httpx.Client, harness: GatewayHarness) -> None:
    model = Model(http_client, "way")
    model.version(1, right=60)
    assert model.promote(1, expected=0)["moved"]
    model.version(2, right=90)
    harness.wait(lambda: model.get("/versions/2/check")["comparing"] == 0)
    check = model.get("/versions/2/check?alias=champion")
    assert (check["verdict"], check["baseline"]) == ("pass", 1)
    assert model.promote(2, expected=1)["verdict"] == "pass"
    model.version(3, right=80)
    judged = model.promote(3)

    def verdict() -> Any:
        return model.get(f"/promotions/{judged['promotion']}")["verdict"]

    harness.wait(verdict)
    assert (verdict(), model.champion) == ("fail", 2)
    harness.wait(lambda: harness.catalogue.aliases.get("nlp/way/champion") == 2)
    moved = model.post("aliases/champion/rollbacks", {"expected": 2, "reason": "too slow"})
    assert (moved["from_version"], moved["to_version"], moved["kind"]) == (2, 1, "rollback")
    kinds = [one["kind"] for one in model.get("/aliases/champion/history")["moves"]]
    assert kinds == ["rollback", "gate", "gate"]
    lineage = model.get("/aliases/champion/lineage")
    assert (lineage["version"], lineage["move"]["kind"], lineage["run"]) == (1, "rollback", None)


def test_a_rollback_is_decided_while_mlflow_is_away(
    http_client: httpx.Client, harness: GatewayHarness
) -> None:  # fmt: skip
    model = Model(http_client, "away")
    for number in (1, 2):
        model.version(number, right=50)
        override = {"person": "ada", "reason": "first"}
        assert model.promote(number, override=override)["moved"]
    harness.wait(lambda: harness.catalogue.aliases.get("nlp/away/champion") == 2)
    harness.catalogue.away = True
    try:
        assert model.post("aliases/champion/rollbacks", {})["to_version"] == 1
        assert model.get()["catalogue_behind"]
        assert harness.catalogue.aliases["nlp/away/champion"] == 2
    finally:
        harness.catalogue.away = False
    harness.wait(lambda: harness.catalogue.aliases["nlp/away/champion"] == 1)


def test_the_log_names_the_checkpoint_to_retain_though_mlflow_makes_its_version_later(
    http_client: httpx.Client, harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is answered with 503 then, and the user need not send it again.

    The gateway itself pins nothing: MLflow may refuse the version.
    """
    job_id = submit(http_client)
    harness.wait(lambda: harness.tail.job(job_id) is not None)
    harness.say(CheckpointPromoted(job_id=job_id, attempt=1, step=20, run=f"{job_id}-p"), job_id)
    harness.wait(lambda: f"{job_id}/20" in registry_of(harness.tail.registry()).checkpoints)
    monkeypatch.setattr(models, "_REGISTER_WAIT_S", 0.5)
    harness.catalogue.away = True
    try:
        path = "/v1/models/pinned/versions"
        problem(http_client.post(path, headers=NLP, json={"job_id": job_id}), 503, "undecided")
        asked, decided = (
            [decode(record).data for record in harness.broker.dump(harness.names.name(topic))]
            for topic in (Topic.REQUESTS, Topic.REGISTRY)
        )
        begun = [one for one in decided if isinstance(one, VersionBegun) and one.model == "pinned"]
        (place,) = [one.checkpoint for one in begun if one.checkpoint is not None]
        assert (place.job_id, place.attempt, place.step) == (job_id, 1, 20)
        assert not [one for one in asked if isinstance(one, CheckpointPinRequested)]
    finally:
        harness.catalogue.away = False


def test_other_teams_neither_see_nor_move_a_model(
    http_client: httpx.Client, harness: GatewayHarness
) -> None:  # fmt: skip
    del harness
    model = Model(http_client, "ours")
    model.version(1, right=50)
    listed = http_client.get("/v1/models", headers=VISION).json()["models"]
    assert "ours" not in {one["model"] for one in listed}
    for method, path, body in (
        ("GET", "", None),
        ("GET", "/versions/1/check", None),
        ("GET", "/aliases/champion/lineage", None),
        ("POST", "/aliases/champion/promotions", {"version": 1}),
        ("POST", "/aliases/champion/rollbacks", {}),
        ("DELETE", "/gate", None),
        ("POST", "/versions/1/evaluations", {"suite": "qa", "scores": {"q": 1}}),
    ):
        answer = http_client.request(method, model.path + path, headers=VISION, json=body)
        problem(answer, 404, "not-found")
    answer = http_client.put(f"{model.path}/gate", headers=VISION, json=gate("ours"))
    problem(answer, 403, "forbidden")


def test_refusals_say_the_way_out(http_client: httpx.Client, harness: GatewayHarness) -> None:
    del harness
    model = Model(http_client, "refused")
    model.version(1, right=50)
    for path, body, words in (
        ("versions", {"job_id": "no-such-job"}, None),
        ("aliases/champion/promotions", {"version": 9}, "is not registered"),
        ("aliases/champion/promotions", {"version": 1, "expected": 4}, "and not to 4"),
        ("aliases/other/promotions", {"version": 1}, "is not protected"),
        ("aliases/champion/rollbacks", {}, "has no version before"),
    ):
        answer = http_client.post(f"{model.path}/{path}", headers=NLP, json=body)
        if words is None:
            problem(answer, 404, "not-found")
        else:
            problem(answer, 409, "refused")
            assert words in answer.json()["detail"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"baseline": None}, "baseline"),
        ({"aliases": ["latest"]}, "aliases.0"),
        ({"suites": {"qa": {"rule": "not_worse"}}}, "suites.qa"),
        ({"suites": {}}, "(body)"),
        ({"confidence": 1.5}, "confidence"),
    ],
)
def test_a_wrong_gate_names_its_field(
    http_client: httpx.Client, harness: GatewayHarness, fields: dict[str, Any], field: str
) -> None:
    del harness
    body = {name: value for name, value in gate("wrong", **fields).items() if value is not None}
    answer = http_client.put("/v1/models/wrong/gate", headers=NLP, json=body)
    problem(answer, 422, "invalid")
    assert answer.json()["errors"][0]["field"] == field


PROFILED = {
    "snapshot": OLD,
    "made_at": "2026-01-01T00:00:00Z",
    "profile": {
        "rows": 1,
        "columns": [{"kind": "category", "name": "c", "counts": {"de": 1}, "distinct": 1}],
    },
}
LONG = {"kind": "category", "name": "c", "counts": {"d" * 257: 1}, "distinct": 1}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"made_at": "2026-01-01T00:00:00"}, "made_at"),
        ({"made_at": "1969-12-31T23:59:59Z"}, "made_at"),
        ({"made_at": "2200-01-01T00:00:00Z"}, "made_at"),
        ({"profile": {"rows": -1, "columns": []}}, "profile.rows"),
        ({"profile": {"rows": 1, "columns": [LONG]}}, "profile.columns.0.category.counts"),
    ],
)
def test_a_wrong_profile_names_its_field(
    http_client: httpx.Client, harness: GatewayHarness, fields: dict[str, Any], field: str
) -> None:
    del harness
    answer = http_client.post("/v1/profiles?team=nlp", headers=NLP, json={**PROFILED, **fields})
    problem(answer, 422, "invalid")
    assert answer.json()["errors"][0]["field"].startswith(field)


@pytest.mark.parametrize("scores", ["{}", '{"q":NaN}', '{"q":1.1e23}', f'{{"{"q" * 201}":1}}'])
def test_scores_that_are_no_numbers_are_refused(
    http_client: httpx.Client, harness: GatewayHarness, scores: str
) -> None:
    del harness
    model = Model(http_client, "unscored")
    sent = http_client.post(
        f"{model.path}/versions/1/evaluations",
        headers={**NLP, "Content-Type": "application/json"},
        content=f'{{"suite":"qa","scores":{scores}}}',
    )
    assert problem(sent, 422, "invalid")["errors"][0]["field"].startswith("scores")


def test_drift_of_a_later_snapshot_is_found_once(
    http_client: httpx.Client, harness: GatewayHarness
) -> None:  # fmt: skip
    model = Model(http_client, "drifting", training_data={"max_age_days": 30})

    def send(snapshot: str, shift: float) -> None:
        values = [float(number % 97) + shift for number in range(2000)]
        made = profile_of({"length": values}, len(values))
        assert write_profile(made)[1]
        body = {"snapshot": snapshot, "profile": made.model_dump(mode="json"),
                "made_at": "2026-01-01T00:00:00Z"}  # fmt: skip
        answer = http_client.post("/v1/profiles?team=nlp", headers=NLP, json=body)
        assert answer.status_code == 201, answer.text

    model.version(1, right=50, snapshot=OLD)
    model.promote(1)
    unknown = "no profile of the data of version 1 is known"
    shown = model.get("/aliases/champion/drift")
    assert (shown["data_unknown"], shown["age_days"]) == (unknown, None)
    assert model.get()["aliases"][0]["data_unknown"] == unknown
    send(OLD, 0.0)
    assert model.get("/aliases/champion/drift")["data_unknown"] == ""
    assert model.get()["aliases"][0]["data_unknown"] == ""
    send(NEW, 40.0)
    harness.wait(lambda: model.get("/aliases/champion/drift")["checks"])
    found = model.get("/aliases/champion/drift")
    (check,) = found["checks"]
    assert (check["snapshot"], check["found"], check["columns"][0]["column"]) == (NEW, 1, "length")
    harness.wait(lambda: model.get("/aliases/champion/drift")["aged"])
    listed = http_client.get("/v1/models", headers=ADMIN).json()["models"]
    (row,) = [one for one in listed if one["model"] == "drifting"]
    assert row["aliases"][0]["drift"] == 1
