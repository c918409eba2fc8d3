"""Runs the effects of the registry: in MLflow, and with objects in the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gangline_registry.core.model import (
    Compare,
    Compared,
    CompareProfiles,
    Failed,
    Made,
    MakeVersion,
    ProfilesCompared,
    Project,
    Projected,
    Registration,
)
from gangline_registry.core.scores import BadScores, decode
from gangline_registry.service.comparison import compare
from gangline_schemas.models import Evaluation
from gangline_storage.errors import NotFound, StoreError
from gangline_storage.port import ObjectStore

_OF_ALL = ""


def share_of(effect: object) -> str:
    """The team that an effect is for."""
    match effect:
        case MakeVersion(registration):
            return registration.team
        case Compare() | CompareProfiles():
            return effect.team
        case _:
            return _OF_ALL


class Versions(Protocol):
    """MLflow's registry, as this service asks it."""

    def make(self, one: Registration) -> Made | Failed:
        """The version of a registration; the same one each time that it is asked for."""

    def project(self, wanted: Project) -> Projected | Failed:
        """Bring the table of protected aliases to what the log says."""


@dataclass
class Executor:
    """Called from several threads. A failure is a value: `Failed`."""

    mlflow: Versions
    store: ObjectStore | None

    def __call__(self, _key: str, effect: object) -> object:
        """The result of one effect."""
        match effect:
            case MakeVersion(registration):
                return self.mlflow.make(registration)
            case Project():
                return self.mlflow.project(effect)
            case Compare():
                return self._objects(lambda store: self._compare(store, effect))
            case CompareProfiles():
                return self._objects(lambda store: self._drift(store, effect))
            case _:
                raise TypeError(f"{type(effect).__name__} is no effect of the registry")

    def _objects(self, work: Callable[[ObjectStore], object]) -> object:
        if self.store is None:
            return Failed("no object store is set: GANGLINE_STORE_URL", until_restart=True)
        try:
            return work(self.store)
        except NotFound as error:
            return Failed(f"an object is gone: {error}", final=True)
        except BadScores as error:
            return Failed(str(error), final=True)
        except StoreError as error:
            return Failed(f"the store does not answer: {error}")

    @staticmethod
    def _compare(store: ObjectStore, asked: Compare) -> Compared:
        def scores(of: Evaluation) -> dict[str, float]:
            return decode(store.get(of.key), of.digest)

        return Compared(compare(asked, scores(asked.candidate), scores(asked.baseline)))

    @staticmethod
    def _drift(store: ObjectStore, asked: CompareProfiles) -> ProfilesCompared:
        from gangline_registry.core.profile import read_profile
        from gangline_registry.core.profile_difference import differences

        trained, newest = (
            read_profile(store.get(one.profile.key), one.profile.digest)
            for one in (asked.baseline, asked.snapshot)
        )
        return ProfilesCompared(tuple(differences(trained, newest, asked.limits)))
