"""/v1/studies: who sees what, pages, and what is computed of trials."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import httpx
import pytest

from gangline_gateway.app import over
from gangline_gateway.followed import Copies
from gangline_gateway.problems import ProblemError
from gangline_gateway.study_submit import most_trials, study_id_of, submit_study
from gangline_schemas.api.base import parse
from gangline_schemas.api.runs import Parallel
from gangline_schemas.api.studies import (
    BestSoFar,
    ParetoFront,
    StudyCurves,
    StudyDetail,
    StudyImportance,
    StudyPage,
    TrialDetail,
    TrialPage,
)
from gangline_schemas.base import Event
from gangline_schemas.events.studies import EndReason, StudyEnding
from gangline_schemas.job_ids import suffix_of_key
from gangline_schemas.study_file import StudySpec
from gangline_service.tokens import Principal, Role
from support.builders.studies import SPEC, Studies, example
from support.clients.routes import ask

ADA = Principal(name="ada", role=Role.MEMBER, teams=frozenset({"nlp"}))
EVE = Principal(name="eve", role=Role.MEMBER, teams=frozenset({"other"}))
STUDY = "/v1/studies/lr-sweep-1"
Get = Callable[..., httpx.Response]


class Context:
    """The parts of the gateway that these routes read."""

    def __init__(self, made: Studies) -> None:
        self.tail = self
        self.clock = lambda: made.now
        self.requested: list[Event] = []
        self._made = made

    def studies(self) -> Copies[Any]:
        return Copies([self._made.state])

    async def request(self, _key: str, event: Event) -> None:
        self.requested.append(event)


def asking(made: Studies, caller: Principal = ADA, context: Context | None = None) -> Get:
    app = over(context or Context(made))  # type: ignore[arg-type]

    def get(path: str, body: Any = None, **params: Any) -> httpx.Response:
        return ask(app, caller, path, "GET" if body is None else "POST", params=params, json=body)

    return get


class Submitting(Context):
    """One submission at a time."""

    @property
    def submitting(self) -> Submitting:
        return self

    @asynccontextmanager
    async def hold(self, _study_id: str) -> AsyncIterator[None]:
        yield


def test_a_key_is_not_used_again_for_a_file_that_differs_in_a_type_alone() -> None:
    one, other = (
        StudySpec.model_validate({**SPEC, "space": {"x": {"type": "choice", "values": values}}})
        for values in ([1, 2], [True, 2])
    )
    made = Studies()
    study_id = study_id_of(one, suffix_of_key(one.team, "key"))
    made.create(study_id, space=one.space)
    app: Any = Submitting(made)
    assert asyncio.run(submit_study(app, ADA, one, "key")) == (study_id, False)
    with pytest.raises(ProblemError, match="another body"):
        asyncio.run(submit_study(app, ADA, other, "key"))


@pytest.fixture
def get() -> Get:
    return asking(example())


def test_a_list_has_the_caller_s_studies_with_their_best_trial(get: Get) -> None:
    [study] = parse(StudyPage, get("/v1/studies").text).studies
    assert (study.study_id, study.state, study.team) == ("lr-sweep-1", "running", "nlp")
    assert study.trials.model_dump() == {
        "limit": 8, "waiting": 1, "running": 1, "paused": 1, "completed": 2, "pruned": 1,
        "failed": 1,
    }  # fmt: skip
    assert study.best is not None
    assert (study.best.number, study.best.value, study.best.job_id) == (2, 1.5, "lr-sweep-1-t2")
    assert study.experiment == "nlp/default/lr-sweep-1"
    assert study.gpu_hours > 5 * 0.5


def test_the_study_of_another_team_does_not_exist(get: Get) -> None:
    assert get("/v1/studies/theirs-1").status_code == 404
    other = asking(example(), EVE)
    for path in ("", "/trials", "/trials/1", "/curves", "/parallel", "/importance", "/pareto"):
        assert other(STUDY + path).status_code == 404, path
    assert parse(StudyPage, other("/v1/studies").text).studies == []


def test_a_filter_and_pages(get: Get) -> None:
    made = example()
    for number in range(5):
        made.create(f"more-{number}", name="more")
    get = asking(made)
    first = parse(StudyPage, get("/v1/studies", limit=4).text)
    rest = parse(StudyPage, get("/v1/studies", limit=4, cursor=first.cursor).text)
    found = [each.study_id for each in (*first.studies, *rest.studies)]
    assert found == ["more-4", "more-3", "more-2", "more-1", "more-0", "lr-sweep-1"]
    assert rest.cursor is None
    assert parse(StudyPage, get("/v1/studies", state="ended").text).studies == []
    [named] = parse(StudyPage, get("/v1/studies", name="lr").text).studies
    assert named.name == "lr-sweep"


def test_a_study_has_its_spec_and_ends(get: Get) -> None:
    found = parse(StudyDetail, get(STUDY).text)
    assert found.spec is not None
    assert found.spec.stopping.kind == "asha"
    made = Studies()
    made.create()
    made.end()
    ended = parse(StudyDetail, asking(made)(STUDY).text)
    assert (ended.state, ended.reason, ended.ended) == ("ended", "trials", True)


def numbers(page: TrialPage) -> list[int]:
    return [each.number for each in page.trials]


def test_trials_in_several_orders(get: Get) -> None:
    def asked(**params: Any) -> list[int]:
        return numbers(parse(TrialPage, get(f"{STUDY}/trials", **params).text))

    assert asked() == [0, 1, 2, 3, 4, 5, 6]
    assert asked(order_by="newest") == [6, 5, 4, 3, 2, 1, 0]
    assert asked(order_by="value") == [2, 0, 5, 3, 1, 4, 6]
    assert asked(state="completed") == [0, 2]
    first = parse(TrialPage, get(f"{STUDY}/trials", order_by="value", limit=3).text)
    assert first.cursor == "3"
    assert asked(order_by="value", cursor="3") == [3, 1, 4, 6]


def test_a_trial_says_where_it_is_and_why(get: Get) -> None:
    pruned = parse(TrialDetail, get(f"{STUDY}/trials/1").text)
    assert (pruned.state, pruned.reason, pruned.value) == ("pruned", "rung", 3.5)
    assert pruned.parameters == {"lr": 5e-4, "opt": "sgd"}
    failed = parse(TrialDetail, get(f"{STUDY}/trials/4").text)
    assert (failed.state, failed.reason) == ("failed", "out_of_memory")
    assert failed.curve.values == [None]
    running = parse(TrialDetail, get(f"{STUDY}/trials/5").text)
    assert running.gpus == 2
    assert running.gpu_hours > 0
    assert get(f"{STUDY}/trials/99").status_code == 404


def test_curves_show_live_trials_first_and_the_rungs(get: Get) -> None:
    found = parse(StudyCurves, get(f"{STUDY}/curves").text)
    assert [each.number for each in found.curves] == [0, 1, 2, 3, 4, 5]
    assert found.rungs == [10, 30]
    assert found.curves[2].steps == [10, 30, 90]
    some = parse(StudyCurves, get(f"{STUDY}/curves", limit=3).text)
    assert [each.number for each in some.curves] == [2, 3, 5]
    assert some.left_out == 3


def test_parallel_axes_are_the_parameters_then_hours_then_objectives(get: Get) -> None:
    found = parse(Parallel, get(f"{STUDY}/parallel").text)
    axes = [(each.kind, each.name) for each in found.axes]
    assert axes == [
        ("param", "lr"), ("param", "opt"), ("attribute", "gpu_hours"), ("metric", "eval_loss"),
    ]  # fmt: skip
    assert found.axes[1].texts == ["adam", "sgd"]
    assert found.runs[0].values == [3e-2, "adam", 0.5, 1.5]
    assert found.runs[0].run_id == "lr-sweep-1-t2"


def test_importance_names_the_trials_that_it_is_from(get: Get) -> None:
    found = parse(StudyImportance, get(f"{STUDY}/importance").text)
    assert (found.metric, found.trials) == ("eval_loss", 2)
    assert {each.name for each in found.parameters} == {"lr", "opt"}
    assert get(f"{STUDY}/importance", metric="else").status_code == 422


def test_the_best_so_far_improves_over_gpu_hours(get: Get) -> None:
    found = parse(BestSoFar, get(f"{STUDY}/best-so-far").text)
    assert [(each.number, each.value) for each in found.points] == [(0, 2.0), (2, 1.5)]
    assert [each.gpu_hours for each in found.points] == [0.5, 1.5]
    assert found.gpu_hours == parse(StudyDetail, get(STUDY).text).gpu_hours


def test_the_pareto_front_of_two_objectives() -> None:
    made = Studies()
    goals = [{"metric": "loss"}, {"metric": "acc", "direction": "maximize"}]
    bound = [{"metric": "memory_gb", "max": 60}]
    made.create(objective=goals, stopping="none", constraints=bound)
    points = [(1.0, 0.5, 10), (2.0, 0.9, 10), (1.5, 0.4, 10), (0.5, 0.9, 70)]
    for number, (loss, acc, memory) in enumerate(points):
        made.run(number, {9: loss}, others={"acc": acc, "memory_gb": memory})
    found = parse(ParetoFront, asking(made)(f"{STUDY}/pareto").text)
    assert [each.number for each in found.trials] == [0, 1]  # 2 is beaten, 3 breaks a constraint
    shown = parse(TrialPage, asking(made)(f"{STUDY}/trials").text)
    assert [each.feasible for each in shown.trials] == [True, True, True, False]


@pytest.mark.parametrize("count", [2, 3])
def test_the_pareto_front_has_all_that_no_other_beats(count: int) -> None:
    made, random = Studies(), Random(count)
    names = [f"m{number}" for number in range(count)]
    limits = {"trials": 200, "parallel": 2}
    made.create(objective=[{"metric": name} for name in names], stopping="none", limits=limits)
    points = [tuple(float(random.randrange(12)) for _ in names) for _ in range(150)]
    for number, point in enumerate(points):
        others = dict(zip(names[1:], point[1:], strict=True))
        made.run(number, {9: point[0]}, others=others)
    found = parse(ParetoFront, asking(made)(f"{STUDY}/pareto").text)

    def beaten(one: tuple[float, ...]) -> bool:
        return any(
            other != one and all(a <= b for a, b in zip(other, one, strict=True))
            for other in points
        )

    expected = [number for number, point in enumerate(points) if not beaten(point)]
    assert [each.number for each in found.trials] == expected


@pytest.mark.parametrize("name", ["..%2f", "UPPER", "__proto__", "a" * 64])
def test_a_name_that_no_study_has_is_refused(get: Get, name: str) -> None:
    assert get(f"/v1/studies/{name}").status_code in {404, 422}


@pytest.mark.parametrize("path", ["/v1/studies", "/hpo/studies"])
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"space": {"lr": {"type": "float", "low": 0, "high": 1, "log": True}}}, "space.lr"),
        ({"space": {"__proto__": {"type": "int", "low": 0, "high": 1}}}, "__proto__"),
        ({"space": {"x": {"type": "choice", "values": [*range(10_000)]}}}, "space.x"),
        ({"job": {"run": "train ${{ nothing }}", "resources": {"gpus": 1}}}, "job.run"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_a_bad_study_is_refused_by_its_field(
    get: Get, path: str, changes: dict[str, Any], field: str
) -> None:
    refused = get(path, {**SPEC, **changes})
    assert refused.status_code == 422
    assert field in refused.text


@pytest.mark.parametrize(
    ("changes", "most"),
    [
        ({"sampler": "random"}, 8),
        ({"sampler": "grid"}, 2),
        ({"sampler": "auto"}, 2),
        ({"sampler": "grid", "start": [{"opt": "adam"}]}, 3),
        ({"sampler": "grid", "limits": {"trials": 1}}, 1),
    ],
)
def test_a_plan_counts_the_points_of_a_grid(changes: dict[str, Any], most: int) -> None:
    space = {"opt": SPEC["space"]["opt"]}
    spec = StudySpec.model_validate({**SPEC, "space": space, **changes})
    assert most_trials(spec) == most


def test_another_team_s_study_is_not_submitted_or_stopped(get: Get) -> None:
    assert get("/v1/studies", {**SPEC, "team": "vision"}).status_code == 403
    assert get("/v1/studies/theirs-1/stop", {}).status_code == 404


@pytest.mark.parametrize(
    ("reason", "asked"),
    [(None, 1), (EndReason.GPU_HOURS, 1), (EndReason.STOPPED, 0)],
)
def test_a_study_that_ends_by_itself_can_be_stopped(reason: EndReason | None, asked: int) -> None:
    made = Studies()
    made.create()
    made.run(0, {10: 3.0}, end="")
    if reason is not None:
        made.add(StudyEnding(study_id="lr-sweep-1", reason=reason))
    context = Context(made)
    assert asking(made, context=context)(f"{STUDY}/stop", {}).status_code == 200
    assert len(context.requested) == asked


def test_a_job_cannot_claim_to_be_a_trial(get: Get) -> None:
    trial = {"study_id": "lr-sweep-1", "number": 0, "metrics": ["eval_loss"]}
    body = {"name": "x", "team": "nlp", "run": "true", "resources": {"gpus": 1}, "trial": trial}
    refused = get("/v1/training-jobs", body)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "trial"
