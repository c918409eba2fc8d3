"""Makes suggestions: the executor of the questions of core/suggesting.py.

A suggestion is a function of the question: the seed is that of the study and the trial's number,
and results are added to those that an earlier question had. Optuna and cmaes are
imported with the first question, since most services never have one.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gangline_schemas.study_file import StudySpec
from gangline_schemas.study_space import Parameters, in_order
from gangline_studies.core.suggesting import Ask, NoSuggestion, Suggestion
from gangline_studies.core.values import sampler_of
from gangline_studies.service.perturb import perturbed

if TYPE_CHECKING:
    from gangline_studies.service.cma import Generations
    from gangline_studies.service.optuna_fold import Folded

STUDIES_KEPT = 64
"""The folded results of so many studies are kept between questions."""


@dataclass(slots=True)
class _Kept:
    lock: threading.Lock = field(default_factory=threading.Lock)
    folded: Folded | None = None
    generations: Generations | None = None


class Sampler:
    """Answers questions; may be called from several threads."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, _key: str, effect: object) -> Suggestion | NoSuggestion:
        """The answer to an `Ask`. An error of the sampler is an answer too."""
        if not isinstance(effect, Ask):
            raise TypeError(f"{type(effect).__name__} is no question")
        kept = self._of(effect.study_id)
        with kept.lock:
            try:
                parameters, by = self._suggest(kept, effect)
            except Exception as error:  # noqa: BLE001 - the study ends with its reason
                reason = f"the sampler failed: {type(error).__name__}: {error}"
                return NoSuggestion(effect.study_id, effect.number, reason)
        parent = None if effect.parent is None else effect.parent.number
        return Suggestion(effect.study_id, effect.number, parameters, by, effect.results, parent)

    def _of(self, study_id: str) -> _Kept:
        with self._lock:
            kept = self._kept.setdefault(study_id, _Kept())
            self._kept.move_to_end(study_id)
            while len(self._kept) > STUDIES_KEPT:
                self._kept.popitem(last=False)
            return kept

    def _suggest(self, kept: _Kept, ask: Ask) -> tuple[Parameters, str]:
        seed = seed_of(ask.seed, ask.number)
        if ask.parent is not None:
            return perturbed(ask.spec.space, ask.parent.parameters, seed), "pbt"
        sampler = sampler_of(ask.spec)
        if sampler == "grid" and ask.start is None:
            return grid_point(ask.spec, ask.grid), "grid"
        from gangline_studies.service.optuna_fold import Folded

        if kept.folded is None or not kept.folded.continues(ask):
            kept.folded, kept.generations = Folded(ask.spec), None
        if sampler == "cmaes" and ask.start is None:
            from gangline_studies.service.cma import Generations

            kept.generations = kept.generations or Generations(ask.spec)
            found = kept.generations.suggest(kept.folded, ask, seed)
            if found is not None:
                return found, "cmaes"
        return kept.folded.suggest(ask, sampler, seed)


def share_of(effect: object) -> str:
    """Questions of one study share a thread."""
    return effect.study_id if isinstance(effect, Ask) else ""


def seed_of(seed: int, number: int) -> int:
    """The seed of one suggestion, below 2**32."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:4], "big")


def grid_point(spec: StudySpec, place: int) -> Parameters:
    """The point at a place of the grid; the last parameter changes fastest.

    Cost: its parameters, however many points they have.
    """
    found: Parameters = {}
    for name in reversed(in_order(spec.space) or ()):
        parameter = spec.space[name]
        place, at = divmod(place, int(parameter.points))
        found[name] = parameter.at(at)
    return dict(reversed(found.items()))
