"""Moves of protected aliases: promotions by gate or override, and rollbacks.

A promotion notes the version that the alias points to (`expected`). If the alias has moved before
the verdict, the verdict is void. So of two promotions that race, one wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from gangline_registry.core import comparing
from gangline_registry.core.lookup import Refusal, version_of
from gangline_registry.core.model import Pointer, Promotion, alias_key, model_key, version_key
from gangline_registry.core.policy.judge import judge
from gangline_registry.core.state import RegistryPlan
from gangline_schemas.clocks import lasts
from gangline_schemas.events.model_requests import ModelPromotionRequested, RollbackRequested
from gangline_schemas.events.registry import AliasMoved, PromotionBegun, PromotionJudged
from gangline_schemas.models import CheckpointOf, Finding, Verdict

WAIT = timedelta(minutes=10)
"""So long a promotion waits for comparisons; then it is judged without them."""
OPEN_OF_MODEL = 20
MOST_AT_ONCE = 100
"""So many late promotions one Tick judges; the others wait for the next ones."""


def begin(plan: RegistryPlan, event: ModelPromotionRequested, ref: Mapping[str, str]) -> None:
    """Begin a promotion, and judge it if all that it needs is known. Raises Refusal."""
    pointer = _pointer(plan, event)
    version_of(plan, event.team, event.model, event.version)
    if pointer.version == event.version:
        raise Refusal(f"alias {event.alias} points to version {event.version} already")
    own = [
        one for one in plan.state.promotions.values()
        if (one.team, one.model) == (event.team, event.model)
    ]  # fmt: skip
    if len(own) >= OPEN_OF_MODEL:
        raise Refusal(f"{OPEN_OF_MODEL} promotions of {event.model} wait for their comparisons")
    number = plan.state.numbers.get("promotion", 0) + 1
    begun = PromotionBegun(
        team=event.team,
        model=event.model,
        promotion=number,
        version=event.version,
        alias=event.alias,
        expected=pointer.version,
        override=event.override,
        user=event.user,
        **ref,
    )
    plan.add(event.model, begun)
    settle(plan, event.team, event.model)


def roll_back(plan: RegistryPlan, event: RollbackRequested, ref: Mapping[str, str]) -> None:
    """Move an alias back. It needs neither evidence nor a store. Raises Refusal."""
    pointer = _pointer(plan, event)
    if not pointer.before:
        raise Refusal(f"alias {event.alias} has no version before {pointer.version or 'none'}")
    target = event.to or pointer.before[-1]
    if target not in pointer.before:
        earlier = ", ".join(map(str, dict.fromkeys(reversed(pointer.before))))
        raise Refusal(
            f"alias {event.alias} did not point to version {target} before; it can go back to "
            f"{earlier}, and `gangline models promote` leads to others"
        )
    moved = AliasMoved(
        team=event.team,
        model=event.model,
        alias=event.alias,
        number=plan.state.numbers.get("move", 0) + 1,
        from_version=pointer.version,
        to_version=target,
        expected=pointer.version,
        kind="rollback",
        by=event.user,
        reason=event.reason,
        checkpoint=_checkpoint(plan, event.team, event.model, target),
        **ref,
    )
    plan.add(event.model, moved)
    settle(plan, event.team, event.model)


def settle(plan: RegistryPlan, team: str, model: str) -> None:
    """Judge the promotions of a model that wait, as far as their evidence is there.

    One that moves its alias makes the others void, so all are looked at again.
    """
    while True:
        waiting = [
            promotion
            for promotion in plan.state.promotions.values()
            if (promotion.team, promotion.model) == (team, model)
        ]
        if not any(_step(plan, one) for one in sorted(waiting, key=lambda one: one.number)):
            return


def expire(plan: RegistryPlan) -> None:
    """Judge promotions whose comparisons did not come in time."""
    waiting = plan.state.promotions.values()
    late = [one for one in waiting if not lasts(one.begun_at, plan.now, WAIT)]
    for promotion in late[:MOST_AT_ONCE]:
        if promotion.number in plan.state.promotions:
            _step(plan, promotion, late=True)
            settle(plan, promotion.team, promotion.model)


def _step(plan: RegistryPlan, promotion: Promotion, *, late: bool = False) -> bool:
    """Judge a promotion if its evidence is there; returns whether it was judged."""
    state = plan.state
    team, model = promotion.team, promotion.model
    gated = state.models.get(model_key(team, model))
    pointer = state.aliases.get(alias_key(team, model, promotion.alias))
    if gated is None or pointer is None or pointer.version != promotion.expected:
        now_at = "is not protected any more" if pointer is None else f"moved to {pointer.version}"
        text = f"alias {promotion.alias} {now_at} meanwhile; ask again"
        digest = "0" * 64 if gated is None else gated.digest
        _judged(plan, promotion, promotion.expected, digest, Verdict.VOID,
                (Finding(subject="baseline", verdict=Verdict.VOID, text=text),))  # fmt: skip
        return True
    candidate = state.versions.get(version_key(team, model, promotion.version))
    number = comparing.baseline_of(gated.gate, pointer)
    baseline = state.versions.get(version_key(team, model, number))
    assert candidate is not None  # noqa: S101 - versions in promotions are kept
    waits = comparing.missing(gated.gate, candidate, baseline)
    if waits and not late and promotion.override is None:
        return False
    judged = judge(gated.gate, candidate, baseline)
    _judged(plan, promotion, number, gated.digest, judged.verdict, judged.findings)
    if judged.verdict is Verdict.PASS or promotion.override is not None:
        _move(plan, promotion)
    return True


def _judged(
    plan: RegistryPlan,
    promotion: Promotion,
    baseline: int,
    digest: str,
    verdict: Verdict,
    findings: tuple[Finding, ...],
) -> None:
    judged = PromotionJudged(
        team=promotion.team,
        model=promotion.model,
        promotion=promotion.number,
        version=promotion.version,
        alias=promotion.alias,
        baseline=baseline,
        gate=digest,
        verdict=verdict,
        findings=findings,
    )
    plan.add(promotion.model, judged)


def _move(plan: RegistryPlan, promotion: Promotion) -> None:
    override = promotion.override
    by = promotion.user
    if override is not None and override.person != by:
        by = f"{override.person} (asked by {by})"[:256]
    moved = AliasMoved(
        team=promotion.team,
        model=promotion.model,
        alias=promotion.alias,
        number=plan.state.numbers.get("move", 0) + 1,
        from_version=promotion.expected,
        to_version=promotion.version,
        expected=promotion.expected,
        kind="gate" if override is None else "override",
        by=by,
        reason="" if override is None else override.reason,
        evidence=promotion.number,
        checkpoint=_checkpoint(plan, promotion.team, promotion.model, promotion.version),
    )
    plan.add(promotion.model, moved)


def _checkpoint(plan: RegistryPlan, team: str, model: str, number: int) -> CheckpointOf | None:
    one = plan.state.versions.get(version_key(team, model, number))
    return None if one is None else one.checkpoint


def _pointer(plan: RegistryPlan, event: ModelPromotionRequested | RollbackRequested) -> Pointer:
    """The alias of a request as it stands. Raises Refusal."""
    pointer = plan.state.aliases.get(alias_key(event.team, event.model, event.alias))
    if pointer is None:
        raise Refusal(
            f"alias {event.alias} of {event.model} is not protected; a gate protects it "
            "(`gangline models gate apply FILE`), and MLflow's client moves others"
        )
    if event.expected is not None and event.expected != pointer.version:
        raise Refusal(
            f"alias {event.alias} points to version {pointer.version}, "
            f"and not to {event.expected} as expected"
        )
    return pointer
