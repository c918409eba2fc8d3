"""Which requests reach MLflow, in which workspace, and that the list covers MLflow's routes."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest

from gangline_gateway.mlflow_routes import Refused, check_source, enter, is_mlflow, takes_files
from gangline_service.tokens import Principal, Role
from support.harnesses.genuine_mlflow import REFUSED

NLP = Principal(name="ada", role=Role.MEMBER, teams=frozenset({"nlp"}))
BOTH = Principal(name="bob", role=Role.MEMBER, teams=frozenset({"nlp", "vision"}))
ADMIN = Principal(name="root", role=Role.ADMIN, teams=frozenset())
SERVICE = Principal(name="svc", role=Role.SERVICE, teams=frozenset())


def refusal(path: str, caller: Principal = NLP, query: str = "") -> Refused:
    with pytest.raises(Refused) as found:
        enter(path, query, caller)
    return found.value


@pytest.mark.parametrize(
    "path",
    [
        "/", "/version", "/static-files/static/js/main.js", "/graphql", "/get-artifact",
        "/api/2.0/mlflow/runs/log-metric", "/ajax-api/2.0/mlflow/experiments/search",
        "/ajax-api/3.0/mlflow/traces/search", "/api/2.0/mlflow-artifacts/artifacts/1/a/b.txt",
        "/v1/traces",
    ],
)  # fmt: skip
def test_a_route_of_mlflow_is_the_team_s_own(path: str) -> None:
    passed = enter(f"/mlflow{path}", "", NLP)
    assert (passed.workspace, passed.path) == ("nlp", path)
    passed = enter(f"/mlflow/teams/vision{path}", "", BOTH)
    assert (passed.workspace, passed.path) == ("vision", path)


@pytest.mark.parametrize("family", sorted(REFUSED | {"never-heard-of"}))
def test_other_routes_are_refused(family: str) -> None:
    for api in ("api", "ajax-api"):
        for path in (f"/{api}/3.0/mlflow/{family}", f"/{api}/2.0/mlflow/{family}/list"):
            assert refusal(f"/mlflow{path}").status == 403
    assert refusal(f"/mlflow/{family}").status == 403


@pytest.mark.parametrize("path", ["/ajax-api/2.0/jobs/x", "/gateway/x", "/api/2.0/mlflow", "/x"])
def test_paths_without_a_family_are_refused(path: str) -> None:
    assert refusal(f"/mlflow{path}").status == 403


@pytest.mark.parametrize("dots", [".", "..", "%2e", "%2e%2e", "%252e%252e", "..%2f", "..%5c"])
def test_dots_are_refused_however_they_are_spelled(dots: str) -> None:
    inside = f"/mlflow/api/2.0/mlflow-artifacts/artifacts/{dots}/workspaces/vision/x"
    assert refusal(inside).status == 400
    query = f"path={dots}/x"
    assert refusal("/mlflow/ajax-api/2.0/mlflow/artifacts/list", query=query).status == 400
    query = f"path={quote(dots)}"
    assert refusal("/mlflow/ajax-api/2.0/mlflow/artifacts/list", query=query).status == 400


@pytest.mark.parametrize(
    "up",
    ["%E2%80%A5/", "\u2025/", "..\u2215", "..\u2044", "..\uff0f", "\uff0e\uff0e/", "..\\", "..\0/"],
)
def test_characters_that_look_like_dots_and_slashes_are_refused(up: str) -> None:
    assert refusal(f"/mlflow/api/2.0/mlflow-artifacts/artifacts/{up}x").status == 400


def test_a_path_that_is_not_utf_8_is_refused() -> None:
    assert refusal("/mlflow/api/2.0/mlflow-artifacts/artifacts/\ufffd/x").status == 400
    like = "filter=name ILIKE '%25986c%25'"  # a pattern of the UI's searches
    assert enter("/mlflow/api/2.0/mlflow/model-versions/search", like, NLP)


def test_a_text_that_is_quoted_very_often_is_refused() -> None:
    # To unquote it to its end would take hours, in the event loop.
    assert refusal("/mlflow/get-artifact", query=f"path=%{'25' * 1_000_000}").status == 400
    assert enter("/mlflow/get-artifact", "path=a%2525b", NLP).workspace == "nlp"


def test_a_name_with_dots_in_it_passes() -> None:
    assert enter("/mlflow/api/2.0/mlflow-artifacts/artifacts/v1.2..x/a.b", "path=a.txt", NLP)


def test_the_token_decides_about_the_team() -> None:
    assert enter("/mlflow/teams/vision/", "", ADMIN).workspace == "vision"
    assert "does not belong" in str(refusal("/mlflow/teams/vision/", NLP))
    assert "/mlflow/teams/TEAM" in str(refusal("/mlflow/", BOTH))
    assert "/mlflow/teams/TEAM" in str(refusal("/mlflow/", ADMIN))
    assert refusal("/mlflow/teams/nlp/", SERVICE).status == 403
    assert enter("/mlflow/teams/default/", "", ADMIN).workspace == "team-default"
    assert "serves no team" in str(refusal(f"/mlflow/teams/team-{'x' * 54}/", ADMIN))


def test_a_model_version_is_made_of_the_team_s_own() -> None:
    for source in ("runs:/r1/model", "models:/m-1", "mlflow-artifacts:/workspaces/nlp/1/r1/model"):
        check_source(json.dumps({"name": "sft", "source": source}).encode(), "nlp")


@pytest.mark.parametrize(
    "source",
    [
        "s3://bucket/x", "file:///etc", "/etc", "http://x/y", "runs://host/x", "models://x", "",
        "mlflow-artifacts:/workspaces/vision/1/r1/model", "mlflow-artifacts:/1/r1", None, 3,
        "mlflow-artifacts:/workspaces/nlp/../vision/1", "runs:/r1/%2e%2e/x", "RUNS:/r1/model",
    ],
)  # fmt: skip
def test_a_model_version_of_anything_else_is_refused(source: object) -> None:
    with pytest.raises(Refused, match="source"):
        check_source(json.dumps({"name": "sft", "source": source}).encode(), "nlp")


@pytest.mark.parametrize("body", [b"", b"[]", b"source=runs:/x", b"\xff"])
def test_a_body_that_cannot_be_read_makes_no_version(body: bytes) -> None:
    with pytest.raises(Refused):
        check_source(body, "nlp")


def test_only_artifacts_take_bodies_of_any_size() -> None:
    assert takes_files("/mlflow/api/2.0/mlflow-artifacts/artifacts/1/model.bin")
    assert takes_files("/mlflow/teams/nlp/ajax-api/2.0/mlflow-artifacts/artifacts/1/model.bin")
    # MLflow holds its body in memory, and refuses more than 10 MB
    assert not takes_files("/mlflow/teams/nlp/ajax-api/2.0/mlflow/upload-artifact")
    assert not takes_files("/mlflow/api/2.0/mlflow/runs/log-batch")
    assert not takes_files("/v1/api/2.0/mlflow-artifacts/artifacts/x")
    assert is_mlflow("/mlflow")
    assert not is_mlflow("/mlflowx")
