"""The tree of teams in the scheduler: limits at every level, models, budgets, and the drf order."""

from __future__ import annotations

import pytest

from gangline_scheduler.core.invariants import ceilings
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.fair_tree import FairTree, total_of
from gangline_scheduler.core.usage import HALF_LIFE_S, average
from gangline_schemas.events.faults import NodeFailed
from gangline_schemas.events.quota import TeamBudgetChanged, TeamConfigured
from gangline_schemas.events.scheduling import JobWaiting, TeamBudgetNoted
from gangline_schemas.team_limits import TeamConfig
from support.builders.deciding import only, team
from support.builders.scheduler import Cluster, node, started_jobs


def configure(cluster: Cluster, name: str, limit: int = 64, **fields: object) -> None:
    data = {"team": name, "gpu_limit": limit} | fields
    cluster.give(TeamConfigured(config=TeamConfig.model_validate(data)))


def tree(cluster: Cluster) -> Cluster:
    configure(cluster, "lab", 4)
    configure(cluster, "nlp", 4, parent="lab")
    configure(cluster, "cv", 4, parent="lab")
    return cluster


def test_what_a_team_holds_counts_for_the_teams_above_it() -> None:
    cluster = tree(Cluster(node(gpus=8)))
    cluster.submit("a", gpus=3)

    told = only(cluster.submit("b", gpus=2, of_team="cv"), JobWaiting)

    assert cluster.state.used == {"nlp": 3, "lab": 3}
    assert "team lab has 3 of the 4" in told.message
    assert started_jobs(cluster.cancel("a")) == ["b"]
    assert {name: used for name, used in cluster.state.used.items() if used} == {"cv": 2, "lab": 2}


def test_a_team_that_moves_in_the_tree_takes_its_gangs_along() -> None:
    cluster = tree(Cluster(node(gpus=8)))
    cluster.submit("a", gpus=3)
    configure(cluster, "other", 64)
    configure(cluster, "nlp", 4, parent="other")

    assert cluster.state.used == {"nlp": 3, "other": 3}
    assert ceilings(cluster.state) == []
    assert started_jobs(cluster.submit("b", gpus=4, of_team="cv")) == ["b"]


def test_what_a_moved_team_holds_is_held_by_its_new_parent_from_then_on() -> None:
    cluster = tree(Cluster(node(gpus=8)))
    configure(cluster, "other", 64)
    cluster.run("a", gpus=3)
    configure(cluster, "nlp", 4, parent="other")

    rates = {name: known.rate[0] for name, known in cluster.state.usage.items()}
    assert (rates["lab"], rates["other"], rates["nlp"]) == (0, 3, 3)
    cluster.exit("a")
    assert {known.rate[0] for known in cluster.state.usage.values()} == {0}


def test_a_parent_that_may_borrow_lends_to_its_teams() -> None:
    cluster = Cluster(node(gpus=8))
    configure(cluster, "lab", 4, borrow_limit=2)
    configure(cluster, "nlp", 4, parent="lab")
    configure(cluster, "cv", 4, parent="lab")
    cluster.submit("a", gpus=4)

    assert started_jobs(cluster.submit("b", gpus=2, of_team="cv")) == ["b"]
    assert started_jobs(cluster.submit("c", gpus=1, of_team="cv")) == []


def test_only_models_that_the_team_may_use_and_so_many_of_them() -> None:
    cluster = Cluster(node("h", 4, model="h100"), node("a", 4, model="a100"))
    limits = [{"gpu_type": "a100"}, {"gpu_type": "h100", "gpu_limit": 2}]
    configure(cluster, "nlp", gpu_types=limits)
    for job_id in ("a", "b"):
        cluster.submit(job_id, gpus=2, resources={"gpu_type": "h100"})

    assert cluster.state.used_models == {("nlp", "h100"): 2}
    assert cluster.job("b").waiting.code == "quota"  # type: ignore[union-attr]
    assert "has 2 h100" in cluster.job("b").waiting.message  # type: ignore[union-attr]
    # any model will do: what is left of the team's models
    assert cluster.submit("c", gpus=3)
    assert dict(cluster.job("c").gang.models) == {"a100": 3}  # type: ignore[union-attr]


def test_a_family_matches_its_models_and_a_model_itself_alone() -> None:
    cluster = Cluster(
        node("small", 4, model="a100-40gb"),
        node("large", 2, model="a100-80gb"),
        node("old", 2, model="RTX4090"),
    )
    cluster.submit("family", gpus=3, resources={"gpu_type": "a100"})
    cluster.submit("exact", gpus=2, resources={"gpu_type": "A100_80GB"})
    cluster.submit("spelled", gpus=2, resources={"gpu_type": "rtx-4090"})
    cluster.submit("absent", gpus=1, resources={"gpu_type": ["h100", "a100-64gb"]})

    models = {job_id: job.gang.models for job_id, job in cluster.state.jobs.items() if job.gang}
    assert models == {
        "family": (("a100-40gb", 3),),
        "exact": (("a100-80gb", 2),),
        "spelled": (("rtx-4090", 2),),
    }
    waiting = cluster.job("absent").waiting
    assert waiting is not None
    assert waiting.message.startswith("no node has GPUs of type h100 or a100-64gb; there are")


def test_models_of_a_family_count_together_and_at_every_level() -> None:
    cluster = Cluster(node("small", 8, model="a100-40gb"), node("large", 8, model="a100-80gb"))
    configure(cluster, "lab", gpu_types={"a100": 6})
    configure(cluster, "nlp", parent="lab", gpu_types={"a100-80gb": 4, "a100-40gb": 4})
    configure(cluster, "cv", parent="lab", gpu_types=["a100"])
    cluster.submit("a", gpus=3, resources={"gpu_type": "a100-80gb"})
    assert started_jobs(cluster.submit("b", gpus=2, resources={"gpu_type": "a100-80gb"})) == []
    cluster.cancel("b")
    cluster.submit("c", gpus=2, resources={"gpu_type": "a100-40gb"})

    assert started_jobs(cluster.submit("d", gpus=2, of_team="cv")) == []
    assert started_jobs(cluster.submit("e", gpus=1, of_team="cv")) == ["e"]


def test_a_team_whose_budget_is_spent_starts_nothing_until_there_is_room() -> None:
    cluster = tree(Cluster(node(gpus=8)))
    flip = {"team": "lab", "month": "2026-11", "spent_gpu_hours": 100, "gpu_hours_per_month": 90}
    cluster.give(TeamBudgetChanged.model_validate(flip | {"exhausted": True}))
    assert cluster.give(TeamBudgetChanged.model_validate(flip | {"exhausted": True})) == []

    told = only(cluster.submit("a"), JobWaiting)
    assert "team lab has spent its GPU-hours of 2026-11" in told.message

    freed = cluster.give(TeamBudgetChanged.model_validate(flip | {"exhausted": False}))
    assert only(freed, TeamBudgetNoted).exhausted is False
    assert started_jobs(freed) == ["a"]


def test_usage_decays_by_half_in_a_half_life() -> None:
    cluster = Cluster(node(gpus=8))
    cluster.run("a", gpus=4)
    cluster.tick(seconds=HALF_LIFE_S)
    cluster.exit("a")
    (gpus, _, _) = average(cluster.state.usage["nlp"], cluster.now)
    assert gpus == pytest.approx(2.0)

    cluster.tick(seconds=HALF_LIFE_S)
    (gpus, _, _) = average(cluster.state.usage["nlp"], cluster.now)
    assert gpus == pytest.approx(1.0)


def drf(*weights: tuple[str, float]) -> Cluster:
    cluster = Cluster(node(gpus=8), policy=Policy(order=FairTree()))
    for name, weight in weights:
        configure(cluster, name, weight=weight)
    return cluster


def test_drf_gives_by_weight() -> None:
    cluster = drf(("nlp", 3.0), ("cv", 1.0))
    cluster.submit("all", gpus=8)
    for number in range(8):
        cluster.submit(f"n{number}", gpus=1)
        cluster.submit(f"c{number}", gpus=1, of_team="cv")

    # cancelled at once: nlp has no past
    started = started_jobs(cluster.cancel("all"))

    assert sum(job_id.startswith("n") for job_id in started) == 6
    assert sum(job_id.startswith("c") for job_id in started) == 2


def test_drf_counts_the_dominant_resource() -> None:
    cluster = drf(("nlp", 1.0), ("cv", 1.0))
    cluster.submit("all", gpus=8)
    for number in range(4):
        # 16 of the 64 CPUs each: its CPUs dominate
        cluster.submit(f"n{number}", gpus=1, resources={"cpus_per_gpu": 16})
        cluster.submit(f"c{number}", gpus=1, of_team="cv")

    started = started_jobs(cluster.cancel("all"))

    assert started[:4] == ["c0", "n0", "c1", "c2"]


def test_the_cluster_s_resources_follow_its_nodes() -> None:
    cluster = Cluster(node("a", gpus=8), node("b", gpus=4, cpus=16))
    cluster.run("j", gpus=8)
    assert total_of(cluster.state) == (12, 80, 1024)  # gangs do not count

    cluster.give(NodeFailed(node_id="b", incarnation="i1", reason="silent"))

    assert total_of(cluster.state) == (8, 64, 512)


def test_drf_remembers_what_was_used_lately() -> None:
    cluster = drf(("nlp", 1.0), ("cv", 1.0))
    cluster.run("old", gpus=8)
    cluster.tick(seconds=HALF_LIFE_S)
    cluster.submit("n", gpus=8, priority=0)
    cluster.submit("c", gpus=8, of_team="cv", priority=90)

    assert started_jobs(cluster.exit("old")) == ["c"]


def test_drf_shares_between_the_children_of_a_team_first() -> None:
    cluster = drf(("lab", 1.0), ("solo", 1.0))
    for name in ("nlp", "cv"):
        configure(cluster, name, parent="lab")
    cluster.submit("all", gpus=8, of_team="solo")
    for number in range(6):
        for name in ("nlp", "cv", "solo"):
            cluster.submit(f"{name}-{number}", gpus=1, of_team=name)

    started = started_jobs(cluster.cancel("all"))

    count = {name: sum(job.startswith(name) for job in started) for name in ("nlp", "cv", "solo")}
    assert count == {"nlp": 2, "cv": 2, "solo": 4}


def test_team_helper_keeps_the_flat_case() -> None:
    cluster = Cluster(node(gpus=2))
    cluster.give(TeamConfigured(config=team("nlp", limit=1)))
    assert started_jobs(cluster.submit("a", gpus=2)) == []
