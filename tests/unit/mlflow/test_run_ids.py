"""Ids of runs and models that a job makes begin as the id of the job's run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("mlflow")

from mlflow.store.tracking import sqlalchemy_store

from gangline_mlflow.run_ids import ids_of_job, ids_of_run
from gangline_schemas.mlflow_workspace import family_of, mlflow_run_id


def made() -> str:
    return str(sqlalchemy_store.uuid.uuid4().hex)


def test_ids_show_the_job_within_the_block_alone() -> None:
    tags = [SimpleNamespace(key="a", value="b"), SimpleNamespace(key="gangline.job", value="j")]
    with ids_of_job(tags):
        one, two = made(), made()
    assert one != two
    assert {one[:16], two[:16]} == {family_of("j")}
    assert len(one) == 32
    assert not made().startswith(family_of("j"))
    for none in (None, [], tags[:1]):
        with ids_of_job(none):
            assert not made().startswith(family_of("j"))


def test_a_model_belongs_to_the_job_of_its_run() -> None:
    with ids_of_run(mlflow_run_id("j")):
        assert made().startswith(family_of("j"))
    for odd in (None, "", "x", "Z" * 32, mlflow_run_id("j") + "0"):
        with ids_of_run(odd):
            assert len(made()) == 32


def test_mlflow_makes_its_ids_there() -> None:
    """A release of MLflow that makes them elsewhere must be noticed."""
    from inspect import getsource

    store = sqlalchemy_store.SqlAlchemyStore
    assert "run_id = uuid.uuid4().hex" in getsource(store.create_run)
    assert "uuid.uuid4()" in getsource(store.create_logged_model)
