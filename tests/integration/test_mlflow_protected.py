"""MLflow's own client on a registry with protected aliases: it reads all, and moves only others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import mlflow.exceptions
import pytest
import sqlalchemy as sa
from mlflow import MlflowClient
from mlflow.utils.workspace_context import ServerWorkspaceContext

from gangline_mlflow.plugin import registry_store
from gangline_mlflow.protected_registry import ProtectedRegistry
from gangline_schemas.mlflow_registry import REGISTRATION_TAG, AliasRow, VersionQuery

TEAM, MODEL = "nlp", "summarizer"


def row(version: int, *keep: int, alias: str = "champion", model: str = MODEL) -> AliasRow:
    return AliasRow(workspace=TEAM, model=model, alias=alias, version=version, keep=keep)


def asked(number: int, **fields: object) -> VersionQuery:
    tags = {REGISTRATION_TAG: str(number), "gangline.step": "100"}
    source = {} if "version" in fields else {"source": "runs:/r1/checkpoints/100"}
    return VersionQuery.model_validate(
        {"workspace": TEAM, "model": MODEL, "tags": tags, **source, **fields}
    )


@pytest.fixture(scope="module", name="made")
def _made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that MLflow's own migrations made, once."""
    place = tmp_path_factory.mktemp("mlflow") / "made.db"
    ProtectedRegistry(f"sqlite:///{place}").engine.dispose()
    return place


@pytest.fixture(name="uri")
def _uri(made: Path, tmp_path: Path) -> str:
    place = tmp_path / "mlflow.db"
    place.write_bytes(made.read_bytes())
    return f"gangline+sqlite:///{place}"


@pytest.fixture(name="store")
def _store(uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProtectedRegistry]:
    monkeypatch.setenv("MLFLOW_ENABLE_WORKSPACES", "true")
    with ServerWorkspaceContext(TEAM):
        yield registry_store(uri)


@pytest.fixture(name="client")
def _client(store: ProtectedRegistry, uri: str) -> MlflowClient:
    """Three versions; champion is protected at 2, and may go back to 1."""
    for number in (1, 2, 3):
        assert store.version_for(asked(number)) == number
    store.project([row(2, 1, 2)])
    return MlflowClient(tracking_uri=uri.removeprefix("gangline+"), registry_uri=uri)


REFUSED: dict[str, Callable[[MlflowClient], object]] = {
    "set alias": lambda c: c.set_registered_model_alias(MODEL, "champion", "3"),
    "set alias, as it is": lambda c: c.set_registered_model_alias(MODEL, "champion", "2"),
    "delete alias": lambda c: c.delete_registered_model_alias(MODEL, "champion"),
    "delete version": lambda c: c.delete_model_version(MODEL, "2"),
    "delete version of a rollback": lambda c: c.delete_model_version(MODEL, "1"),
    "rename": lambda c: c.rename_registered_model(MODEL, "other"),
    "delete model": lambda c: c.delete_registered_model(MODEL),
    "stage": lambda c: c.transition_model_version_stage(MODEL, "3", "Production"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_protected_aliases_are_not_moved(client: MlflowClient, name: str) -> None:
    with pytest.raises(mlflow.exceptions.MlflowException, match=r"gangline models|protected") as e:
        REFUSED[name](client)
    assert e.value.error_code == "PERMISSION_DENIED"
    assert client.get_model_version_by_alias(MODEL, "champion").version == 2


def test_other_aliases_and_models_work_as_before(client: MlflowClient) -> None:
    client.set_registered_model_alias(MODEL, "candidate", "3")
    assert client.get_model_version_by_alias(MODEL, "candidate").version == 3
    client.delete_registered_model_alias(MODEL, "candidate")
    client.delete_model_version(MODEL, "3")
    client.create_registered_model("free")
    client.rename_registered_model("free", "freed")
    client.delete_registered_model("freed")
    client.update_model_version(MODEL, "2", description="the best so far")
    assert client.get_registered_model(MODEL).aliases == {"champion": 2}


def test_another_team_has_its_own(client: MlflowClient, store: ProtectedRegistry) -> None:
    with ServerWorkspaceContext("vision"):
        client.create_registered_model(MODEL)
        assert store.version_for(asked(9, workspace="vision")) == 1
        client.set_registered_model_alias(MODEL, "champion", "1")
        client.delete_registered_model(MODEL)
    assert client.get_model_version_by_alias(MODEL, "champion").version == 2


def test_a_move_is_seen_and_a_change_behind_the_gate_is_repaired(
    client: MlflowClient, store: ProtectedRegistry
) -> None:
    store.project([row(1, 1)])
    assert client.get_model_version_by_alias(MODEL, "champion").version == 1
    assert store.project([row(1, 1)]).repaired == ()
    with store.engine.begin() as connection:
        connection.execute(sa.text("UPDATE registered_model_aliases SET version = 3"))
    assert [one.version for one in store.project([row(1, 1)]).repaired] == [3]
    with store.engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM registered_model_aliases"))
    assert [one.version for one in store.project([row(1, 1)]).repaired] == [0]
    assert client.get_model_version_by_alias(MODEL, "champion").version == 1


def test_a_lost_version_is_named_and_the_others_are_written(
    client: MlflowClient, store: ProtectedRegistry
) -> None:
    answer = store.project([row(7, alias="staging"), row(3, 3)])
    assert [(one.alias, one.version) for one in answer.missing] == [("staging", 7)]
    assert client.get_model_version_by_alias(MODEL, "champion").version == 3


def test_an_alias_from_before_the_gate_stays_until_it_moves(
    client: MlflowClient, store: ProtectedRegistry
) -> None:
    client.set_registered_model_alias(MODEL, "old", "3")
    store.project([row(0, alias="old")])
    assert client.get_model_version_by_alias(MODEL, "old").version == 3
    with pytest.raises(mlflow.exceptions.MlflowException):
        client.set_registered_model_alias(MODEL, "old", "1")


def test_a_gate_that_is_removed_frees_its_aliases(
    client: MlflowClient, store: ProtectedRegistry
) -> None:
    store.project([])
    assert client.get_model_version_by_alias(MODEL, "champion").version == 2
    client.set_registered_model_alias(MODEL, "champion", "3")
    assert client.get_model_version_by_alias(MODEL, "champion").version == 3
    client.delete_registered_model(MODEL)
    assert client.search_registered_models() == []


def test_a_registration_makes_one_version(client: MlflowClient, store: ProtectedRegistry) -> None:
    assert store.version_for(asked(2)) == 2
    assert store.version_for(asked(4)) == 4
    assert store.version_for(asked(5, version=1)) == 1
    client.set_model_version_tag(MODEL, "2", "gangline.step", "by a user")
    assert store.version_for(asked(2)) == 2
    client.create_model_version(MODEL, "runs:/r2/other", tags={"gangline.registration": "7"})
    assert store.version_for(asked(7)) == 6
    with pytest.raises(mlflow.exceptions.MlflowException, match="not found"):
        store.version_for(asked(6, version=77))
    assert client.get_model_version(MODEL, "2").tags["gangline.registration"] == "2"


def test_a_version_that_was_deleted_is_made_again_once(
    client: MlflowClient, store: ProtectedRegistry
) -> None:
    source = "runs:/r1/checkpoints/100"
    assert store.version_for(asked(5, version=3, source=source)) == 3
    client.delete_model_version(MODEL, "3")
    for _ in range(2):  # its answer was lost
        assert store.version_for(asked(5, version=3, source=source)) == 4
    store.project([])
    client.delete_registered_model(MODEL)
    assert store.version_for(asked(6, version=2, source=source)) == 1
    client.create_model_version(MODEL, "runs:/r2/other")
    assert store.version_for(asked(7, version=2, source=source)) == 3, "2 is another one now"
