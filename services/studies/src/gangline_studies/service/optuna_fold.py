"""Optuna's samplers over folded results: no storage, no hidden attributes, no clock.

Each question makes a new sampler with its own seed, and gives it the study's trials by number, as
`create_trial` makes them. So a suggestion is the one that a live Optuna study would give at that
point (tests/properties/test_fold_and_ask.py).
"""

from __future__ import annotations

import math
import warnings
from bisect import insort
from collections.abc import Container
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import InMemoryStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from gangline_schemas.events.studies import TrialFailure
from gangline_schemas.study_file import StudySpec
from gangline_schemas.study_space import (
    ChoiceParameter,
    FloatParameter,
    IntParameter,
    Parameters,
    Value,
    in_order,
)
from gangline_studies.core.state import Phase, Trial
from gangline_studies.core.suggesting import Ask
from gangline_studies.core.values import violations

optuna.logging.set_verbosity(optuna.logging.ERROR)
STARTUP = 10
"""TPE suggests at random until so many results are known."""
_NAME = "study"
MOST_STEPS = 1_000_000
"""Of a float. With more, rounding lets values lie between two steps, which Optuna refuses. Then it
searches the range, and the value is put on its step afterwards."""
TOLERANCE = 1e-8
"""Of a step: Optuna takes values so near to it."""


def distribution(
    parameter: FloatParameter | IntParameter | ChoiceParameter,
) -> BaseDistribution:
    """Optuna's form of a parameter. A choice is the index of its value: true is not 1."""
    if isinstance(parameter, FloatParameter):
        low, high, step = parameter.low, parameter.high, _steps_of(parameter)
        if step is None:
            return FloatDistribution(low, high, log=parameter.log)
        # Optuna warns where the last step is not the end.
        return FloatDistribution(low, min(high, low + (parameter.points - 1) * step), step=step)
    if isinstance(parameter, IntParameter):
        step = parameter.step or 1
        high = parameter.low + (int(parameter.points) - 1) * step
        return IntDistribution(parameter.low, high, log=parameter.log, step=step)
    return CategoricalDistribution(range(len(parameter.values)))


def inner(parameter: FloatParameter | IntParameter | ChoiceParameter, value: Value) -> Any:
    """A value as Optuna has it."""
    if isinstance(parameter, ChoiceParameter):
        return parameter.place(value)
    if isinstance(parameter, IntParameter):
        return value
    found, step = float(value), _steps_of(parameter)  # type: ignore[arg-type]
    if step is None:
        return found
    place = (found - parameter.low) / step  # a start point may lie between two steps
    return found if abs(place - round(place)) < TOLERANCE else _on_step(parameter, found)


def outer(parameter: FloatParameter | IntParameter | ChoiceParameter, value: Any) -> Value:
    """A value of Optuna's as the trial has it."""
    if isinstance(parameter, ChoiceParameter):
        return parameter.values[int(value)]
    if isinstance(parameter, IntParameter):
        return int(value)
    found = float(value)
    return found if parameter.step is None or _steps_of(parameter) else _on_step(parameter, found)


def _steps_of(parameter: FloatParameter) -> float | None:
    """The step that Optuna searches; None: the whole range."""
    return parameter.step if parameter.points <= MOST_STEPS else None


def _on_step(parameter: FloatParameter, value: float) -> float:
    """The nearest value on a step."""
    step = parameter.step or 1.0
    place = min(round((value - parameter.low) / step), int(parameter.points) - 1)
    return parameter.at(place)


class _Storage(InMemoryStorage):
    """Holds trials that are given, and writes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[FrozenTrial] = []

    def get_all_trials(
        self,
        study_id: int,  # noqa: ARG002 - see BaseStorage
        deepcopy: bool = True,  # noqa: ARG002, FBT001, FBT002
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        """The trials, by number."""
        return [each for each in self.held if states is None or each.state in states]

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Samplers note here what others of the same study may read: there are none."""


class Folded:
    """The results of one study in Optuna's form; later questions add to them."""

    def __init__(self, spec: StudySpec) -> None:
        self.spec = spec
        self.order = in_order(spec.space) or []
        self.distributions = {name: distribution(spec.space[name]) for name in self.order}
        self._folded = 0
        self._last: int | None = None
        self._over: list[FrozenTrial] = []
        self._storage = _Storage()
        directions = [each.direction for each in spec.objective]
        optuna.create_study(storage=self._storage, study_name=_NAME, directions=directions)

    def continues(self, ask: Ask) -> bool:
        """Whether the question is about the same study, and knows all that was folded."""
        known = len(ask.over) >= self._folded and (
            self._last is None or ask.over[self._folded - 1].number == self._last
        )
        return known and ask.spec == self.spec

    def study(self, ask: Ask) -> Study:
        """The study with all results and running trials of a question."""
        for trial in ask.over[self._folded :]:
            made = self._made(trial)
            if made is not None:
                insort(self._over, made, key=lambda each: each.number)
        self._folded = len(ask.over)
        self._last = ask.over[-1].number if ask.over else None
        running = [made for trial in ask.open if (made := self._made(trial)) is not None]
        self._storage.held = sorted([*self._over, *running], key=lambda each: each.number)
        return Study(study_name=_NAME, storage=self._storage)

    def suggest(self, ask: Ask, sampler: str, seed: int) -> tuple[Parameters, str]:
        """Parameters for the question's trial, and the sampler that made them."""
        study = self.study(ask)
        finished = (TrialState.COMPLETE, TrialState.PRUNED)
        known = sum(each.state in finished for each in self._storage.held)
        by_tpe = sampler == "tpe" and known >= STARTUP and ask.start is None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of experimental arguments
            made = self._tpe(seed) if by_tpe else RandomSampler(seed=seed)
            found = self.sample(study, made, ask.number, ask.start or {})
        return found, "start" if ask.start is not None else "tpe" if by_tpe else "random"

    def _tpe(self, seed: int) -> TPESampler:
        conditional = any(parameter.when for parameter in self.spec.space.values())
        single = len(self.spec.objective) == 1
        return TPESampler(
            n_startup_trials=STARTUP,
            multivariate=single or conditional,
            group=conditional,
            constant_liar=True,
            seed=seed,
        )

    def sample(
        self, study: Study, sampler: BaseSampler, number: int, fixed: Parameters
    ) -> Parameters:
        """The parameters of `study.ask` and its trial's `suggest`, with some values fixed."""
        trial = FrozenTrial(
            number=number,
            state=TrialState.RUNNING,
            value=None,
            datetime_start=None,
            datetime_complete=None,
            params={},
            distributions={},
            user_attrs={},
            system_attrs={},
            intermediate_values={},
            trial_id=number,
        )
        sampler.before_trial(study, trial)
        space = sampler.infer_relative_search_space(study, trial)
        relative = sampler.sample_relative(study, trial, space)
        found: Parameters = {}
        for name in self.order:
            parameter = self.spec.space[name]
            if not parameter.applies(found):
                continue
            held = self.distributions[name]
            if name in fixed:
                found[name] = fixed[name]
            elif held.single():
                found[name] = outer(parameter, held.to_external_repr(_only(held)))
            elif name in relative:
                found[name] = outer(parameter, relative[name])
            else:
                sampled = sampler.sample_independent(study, trial, name, held)
                found[name] = outer(parameter, sampled)
        return found

    def _made(self, trial: Trial) -> FrozenTrial | None:
        """A trial as Optuna has it; None: the sampler does not know of it."""
        state = _STATES[trial.phase]
        constraints: dict[str, float] = {}
        if trial.phase is Phase.FAILED:
            if trial.why is not TrialFailure.OUT_OF_MEMORY:
                return None
            constraints = {"memory": 1.0}
        elif trial.values and state is not TrialState.RUNNING:
            found = violations(self.spec, trial.values)
            named = zip(self.spec.constraints, found, strict=True)
            constraints = {each.metric: value for each, value in named}
        values = None
        if state is TrialState.COMPLETE:
            values = [trial.values[each.metric] for each in self.spec.objective]
        made = create_trial(
            state=state,
            values=values,  # type: ignore[arg-type]
            params={
                name: inner(self.spec.space[name], value)
                for name, value in trial.parameters.items()
            },
            distributions={name: self.distributions[name] for name in trial.parameters},
            system_attrs={f"constraints:{name}": value for name, value in constraints.items()},
            intermediate_values=self._last_value(trial),
        )
        made.number = made._trial_id = trial.number  # noqa: SLF001 - as a storage sets it
        return made

    def _last_value(self, trial: Trial) -> dict[int, float]:
        """Of a trial that was pruned or is paused; Optuna takes it for one objective only."""
        if _STATES[trial.phase] is not TrialState.PRUNED or not trial.curve:
            return {}
        if len(self.spec.objective) > 1 or trial.phase is Phase.FAILED:
            return {}
        step, value = trial.curve[-1]
        return {step: math.nan if value is None else value}


def _only(held: BaseDistribution) -> float:
    return held.low if isinstance(held, FloatDistribution | IntDistribution) else 0


_STATES = {
    Phase.WAITING: TrialState.RUNNING,
    Phase.RUNNING: TrialState.RUNNING,
    Phase.PAUSED: TrialState.PRUNED,
    Phase.COMPLETED: TrialState.COMPLETE,
    Phase.PRUNED: TrialState.PRUNED,
    Phase.FAILED: TrialState.PRUNED,
    Phase.WITHDRAWN: TrialState.FAIL,
}
