"""MLflow's own model registry, in which aliases that a gate protects change by the gate alone.

The registry service decides where a protected alias points to. Its log is the truth, and MLflow's
table of aliases follows it: `project` writes the table, and a table of ours that says which aliases
are protected. Each method that would change one of them otherwise refuses, and says the way out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED
from mlflow.store.model_registry.sqlalchemy_workspace_store import WorkspaceAwareSqlAlchemyStore

from gangline_mlflow.database import transaction
from gangline_schemas.mlflow_registry import REGISTRATION_TAG, AliasesAnswer, AliasRow, VersionQuery

_CREATE = """
CREATE TABLE IF NOT EXISTS gangline_protected_aliases
(workspace VARCHAR(63) NOT NULL, name VARCHAR(256) NOT NULL, alias VARCHAR(256) NOT NULL,
 version INTEGER NOT NULL, keep TEXT NOT NULL, PRIMARY KEY (workspace, name, alias))
"""
_ALL = "SELECT workspace, name, alias, version, keep FROM gangline_protected_aliases"
_OF_MODEL = f"{_ALL} WHERE workspace = :workspace AND name = :name"
_OF_TEAM = f"{_ALL} WHERE workspace = :workspace"
_VERSIONS = """
SELECT name, version, run_id, source, storage_location FROM model_versions
WHERE workspace = :workspace AND name IN
  (SELECT name FROM gangline_protected_aliases WHERE workspace = :workspace)
"""
_PROTECT = """
INSERT INTO gangline_protected_aliases (workspace, name, alias, version, keep)
VALUES (:workspace, :name, :alias, :version, :keep)
ON CONFLICT (workspace, name, alias) DO UPDATE SET version = excluded.version, keep = excluded.keep
"""
_RELEASE = """
DELETE FROM gangline_protected_aliases
WHERE workspace = :workspace AND name = :name AND alias = :alias
"""
_WRONG = """
SELECT p.workspace, p.name, p.alias, p.version, a.version AS found, v.version AS known
FROM gangline_protected_aliases p
LEFT JOIN registered_model_aliases a
  ON a.workspace = p.workspace AND a.name = p.name AND a.alias = p.alias
LEFT JOIN model_versions v
  ON v.workspace = p.workspace AND v.name = p.name AND v.version = p.version
  AND v.current_stage <> 'Deleted_Internal'
WHERE p.version > 0 AND (a.version IS NULL OR a.version <> p.version OR v.version IS NULL)
"""
_POINT = """
INSERT INTO registered_model_aliases (workspace, name, alias, version)
VALUES (:workspace, :name, :alias, :version)
ON CONFLICT (workspace, name, alias) DO UPDATE SET version = excluded.version
"""
Key = tuple[str, str, str]


class ProtectedRegistry(WorkspaceAwareSqlAlchemyStore):  # type: ignore[misc]  # MLflow has no types
    """The registry of a server with workspaces."""

    def __init__(self, db_uri: str) -> None:
        super().__init__(db_uri)
        with self.engine.begin() as connection:
            connection.execute(sa.text(_CREATE))

    # The registry service writes

    def project(self, wanted: Iterable[AliasRow]) -> AliasesAnswer:
        """Protect these aliases and no others, and point them where they belong.

        An alias of version 0 is protected and stays as it is. Raises DatabaseAway.
        """
        rows = {(one.workspace, one.model, one.alias): one for one in wanted}
        with transaction(self.engine) as connection:
            self._protect(connection, rows)
            wrong = connection.execute(sa.text(_WRONG)).all()
            lost = [row for row in wrong if row.known is None]
            moved = [row for row in wrong if row.known is not None]
            points = [
                {"workspace": row.workspace, "name": row.name, "alias": row.alias,
                 "version": row.version}
                for row in moved
            ]  # fmt: skip
            if points:
                connection.execute(sa.text(_POINT), points)
        return AliasesAnswer(
            repaired=tuple(_row(row, row.found or 0) for row in moved),
            missing=tuple(_row(row, row.version) for row in lost),
        )

    @staticmethod
    def _protect(connection: sa.Connection, rows: dict[Key, AliasRow]) -> None:
        held = {(row[0], row[1], row[2]): (row[3], row[4])
                for row in connection.execute(sa.text(_ALL))}  # fmt: skip
        asked = {key: (one.version, json.dumps(one.keep)) for key, one in rows.items()}
        names = ("workspace", "name", "alias")
        gone = [dict(zip(names, key, strict=True)) for key in held.keys() - asked.keys()]
        new = [
            {**dict(zip(names, key, strict=True)), "version": version, "keep": keep}
            for key, (version, keep) in asked.items()
            if held.get(key) != (version, keep)
        ]
        if gone:
            connection.execute(sa.text(_RELEASE), gone)
        if new:
            connection.execute(sa.text(_PROTECT), new)

    def version_for(self, asked: VersionQuery) -> int:
        """The version that is asked for; it is made once. Raises MlflowException."""
        if asked.version is not None and (asked.source is None or self._has(asked)):
            return int(self.get_model_version(asked.model, asked.version).version)
        from mlflow.entities.model_registry import ModelVersionTag

        try:
            self.get_registered_model(asked.model)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            self.create_registered_model(asked.model)
        number = asked.tags[REGISTRATION_TAG]
        known = self.search_model_versions(
            f"name = '{asked.model}' AND tags.`{REGISTRATION_TAG}` = '{number}'"
        )
        for one in known:
            if one.source == asked.source:
                return int(one.version)
        tags = [ModelVersionTag(name, value) for name, value in asked.tags.items()]
        made = self.create_model_version(
            asked.model, asked.source, asked.run_id, tags, description=asked.description or None
        )
        return int(made.version)

    def _has(self, asked: VersionQuery) -> bool:
        """Whether the version is there, with the source that is asked for."""
        try:
            found = self.get_model_version(asked.model, asked.version)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False
        return bool(found.source == asked.source)

    def needed_sources(self) -> frozenset[str]:
        """Ids of the runs and logged models that versions come from which protected aliases need.

        Among other parts of addresses.
        """
        team = {"workspace": self._get_active_workspace()}
        with self.engine.connect() as connection:
            aliases = connection.execute(sa.text(_OF_TEAM), team).all()
            versions = connection.execute(sa.text(_VERSIONS), team).all()
        needed = {
            (row.name, number) for row in aliases for number in (row.version, *json.loads(row.keep))
        }
        found: set[str] = set()
        for row in versions:
            if (row.name, row.version) in needed:
                found |= {row.run_id, *(row.source or "").split("/")}
                found |= {*(row.storage_location or "").split("/")}
        return frozenset(found - {None, ""})

    # The six ways in which MLflow's clients could move a protected alias

    def set_registered_model_alias(self, name: str, alias: str, version: Any) -> Any:
        """MLflow's, for aliases that are not protected."""
        self._refuse_alias(name, alias)
        return super().set_registered_model_alias(name, alias, version)

    def delete_registered_model_alias(self, name: str, alias: str) -> Any:
        """MLflow's, for aliases that are not protected."""
        self._refuse_alias(name, alias)
        return super().delete_registered_model_alias(name, alias)

    def delete_model_version(self, name: str, version: Any) -> Any:
        """MLflow's, for versions that no protected alias needs."""
        for row in self._protected(name):
            if str(version) in {str(row.version), *map(str, json.loads(row.keep))}:
                raise _refused(
                    f"version {version} of {name} cannot be deleted: the protected alias "
                    f"{row.alias} points to it, can be rolled back to it, or is compared with it"
                )
        return super().delete_model_version(name, version)

    def rename_registered_model(self, name: str, new_name: str) -> Any:
        """MLflow's, for models without a protected alias."""
        self._refuse_model(name, "renamed")
        return super().rename_registered_model(name, new_name)

    def delete_registered_model(self, name: str) -> Any:
        """MLflow's, for models without a protected alias."""
        self._refuse_model(name, "deleted")
        return super().delete_registered_model(name)

    def transition_model_version_stage(
        self, name: str, version: Any, stage: str, archive_existing_versions: Any
    ) -> Any:
        """MLflow's, for models without a protected alias."""
        protected = self._protected(name)
        if protected:
            alias = protected[0].alias
            raise _refused(
                f"stages of {name} are not changed: its alias {alias} is protected by a gate; "
                + _way_out(name, alias)
            )
        return super().transition_model_version_stage(
            name, version, stage, archive_existing_versions
        )

    def _refuse_alias(self, name: str, alias: str) -> None:
        if any(row.alias == alias for row in self._protected(name)):
            raise _refused(
                f"alias {alias} of {name} is protected by a gate; " + _way_out(name, alias)
            )

    def _refuse_model(self, name: str, what: str) -> None:
        protected = self._protected(name)
        if protected:
            names = ", ".join(row.alias for row in protected)
            raise _refused(
                f"model {name} cannot be {what}: a gate protects its aliases {names}; "
                f"`gangline models gate remove {name}` ends that"
            )

    def _protected(self, name: str) -> list[Any]:
        with self.engine.connect() as connection:
            found = connection.execute(
                sa.text(_OF_MODEL), {"workspace": self._get_active_workspace(), "name": name}
            )
            return list(found.all())


def _row(row: Any, version: int) -> AliasRow:
    return AliasRow(workspace=row.workspace, model=row.name, alias=row.alias, version=version)


def _way_out(name: str, alias: str) -> str:
    return (
        f"`gangline models promote {name} VERSION --alias {alias}` moves it, "
        f"`gangline models rollback {name} --alias {alias}` moves it back"
    )


def _refused(message: str) -> MlflowException:
    return MlflowException(message, error_code=PERMISSION_DENIED)
