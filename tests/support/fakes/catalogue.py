"""MLflow's registry as the registry service sees it, in memory; it can be away."""

from __future__ import annotations

from gangline_registry.core.model import Failed, Made, Project, Projected, Registration


class Catalogue:
    """Stands for `MlflowRegistry`."""

    def __init__(self) -> None:
        self.away = False
        self.aliases: dict[str, int] = {}
        self._made: dict[int, int] = {}
        self._versions: dict[str, int] = {}

    def make(self, one: Registration) -> Made | Failed:
        """The next version of the model, or the version that is taken over."""
        if self.away:
            return Failed("MLflow does not answer")
        model = f"{one.team}/{one.model}"
        if one.version is not None:
            self._versions[model] = max(self._versions.get(model, 0), one.version)
            return Made(one.version)
        if one.number not in self._made:
            self._versions[model] = self._made[one.number] = self._versions.get(model, 0) + 1
        return Made(self._made[one.number])

    def project(self, wanted: Project) -> Projected | Failed:
        """Take over all aliases that point somewhere."""
        if self.away:
            return Failed("MLflow does not answer")
        given = {f"{one.team}/{one.model}/{one.alias}": one.version for one in wanted.aliases}
        self.aliases |= {name: version for name, version in given.items() if version}
        return Projected()
