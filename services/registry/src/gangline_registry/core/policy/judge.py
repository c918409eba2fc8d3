"""The verdict of a gate on a candidate: pure, from evidence that is in the state.

- Any condition that decides and fails: `fail`.
- Else any that decides and is not shown yet (no evidence, too few items): `inconclusive`.
- Else `pass`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gangline_registry.core.model import Registered, comparison_key
from gangline_registry.core.policy.statistics import mcnemar_p, not_worse_p
from gangline_schemas.gate_file import Gate, Importance, ServingLimits, SuiteClaim, SuiteRule
from gangline_schemas.models import Finding, ServingReport, SuiteComparison, Verdict

PASS, FAIL, OPEN = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, and each condition with its own."""

    verdict: Verdict
    findings: tuple[Finding, ...]


def judge(gate: Gate, candidate: Registered, baseline: Registered | None) -> Judgement:
    """The verdict. `baseline` is None while the alias points to nothing."""
    findings = [
        *_checkpoint(gate, candidate),
        *_suites(gate, candidate, baseline),
        *_serving(gate.serving, candidate.serving),
        *_approvals(gate, candidate),
    ]
    deciding = {finding.verdict for finding in findings if finding.decides}
    verdict = FAIL if FAIL in deciding else OPEN if OPEN in deciding else PASS
    return Judgement(verdict, tuple(findings))


def fits(
    gate: Gate, rule: SuiteRule, comparison: SuiteComparison, candidate: str, baseline: str
) -> bool:
    """Whether a comparison is of these scores, at the confidence and seed that the gate asks."""
    if (comparison.candidate, comparison.baseline) != (candidate, baseline):
        return False
    means = comparison.means
    wanted = (gate.confidence_of(rule), gate.seed, gate.resamples)
    return means is None or (means.confidence, means.seed, means.resamples) == wanted


def _checkpoint(gate: Gate, candidate: Registered) -> Iterator[Finding]:
    if gate.checkpoint == "any":
        return
    ok = candidate.checkpoint is not None
    text = (
        "made of a checkpoint that validated itself"
        if ok
        else "no validated checkpoint is behind it: register one with "
        "`gangline models register`, or set checkpoint: any in the gate"
    )
    yield Finding(subject="checkpoint", verdict=PASS if ok else FAIL, text=text)


def _suites(gate: Gate, candidate: Registered, baseline: Registered | None) -> list[Finding]:
    found = {
        name: _suite(gate, name, rule, candidate, baseline) for name, rule in gate.suites.items()
    }
    supporting = [
        name for name, rule in gate.suites.items() if rule.importance is Importance.SUPPORTING
    ]
    failed = [name for name in supporting if found[name][0] is FAIL]
    accepted = len(failed) <= gate.supporting_failures
    findings = []
    for name, rule in gate.suites.items():
        verdict, text = found[name]
        decides = rule.importance is not Importance.INFORMATIONAL
        if decides and verdict is OPEN:
            decides = rule.is_required
        if verdict is FAIL and name in failed and accepted:
            decides = False
            text += f" ({len(failed)} of {gate.supporting_failures} accepted failures)"
        findings.append(
            Finding(
                subject=f"suite {name}",
                verdict=verdict,
                decides=decides,
                text=f"{rule.importance}: {text}",
            )
        )
    return findings


def _suite(  # noqa: PLR0911 - one line for each thing that is not shown
    gate: Gate, name: str, rule: SuiteRule, candidate: Registered, baseline: Registered | None
) -> tuple[Verdict, str]:
    own = candidate.evaluations.get(name)
    if own is None:
        return OPEN, "no evaluation is reported"
    if own.items < rule.min_items:
        return OPEN, f"{own.items:,} items; at least {rule.min_items:,} are needed"
    scores = f"scores {own.mean:.6g}"
    if rule.at_least is not None and own.mean < rule.at_least:
        return FAIL, f"{scores}, below {rule.at_least:g}"
    if rule.rule is None:
        least = "" if rule.at_least is None else f"; at least {rule.at_least:g} is needed"
        return PASS, scores + least
    if baseline is None:
        if gate.first == "accept":
            return PASS, f"{scores}; there is no baseline yet"
        return OPEN, "there is no baseline yet, and the gate says first: refuse"
    return _compared(gate, name, rule, candidate, baseline)


def _compared(
    gate: Gate, name: str, rule: SuiteRule, candidate: Registered, baseline: Registered
) -> tuple[Verdict, str]:
    """The rule against a baseline, for a candidate with an evaluation."""
    own, other = candidate.evaluations[name], baseline.evaluations.get(name)
    if other is None:
        return OPEN, f"version {baseline.version}, the baseline, has no evaluation"
    comparison = candidate.comparisons.get(comparison_key(name, other.digest))
    if comparison is None or not fits(gate, rule, comparison, own.digest, other.digest):
        return OPEN, f"the comparison with version {baseline.version} is not done yet"
    if comparison.problem:
        return OPEN, comparison.problem
    if comparison.unpaired:
        return OPEN, f"{comparison.unpaired:,} items are not in both evaluations"
    return _against(rule, comparison, gate.confidence_of(rule), baseline.version)


def _against(
    rule: SuiteRule, comparison: SuiteComparison, confidence: float, version: int
) -> tuple[Verdict, str]:
    word = "better" if rule.rule is SuiteClaim.BETTER else f"not worse by {rule.margin:g}"
    if comparison.paired is not None:
        table = comparison.paired
        if rule.rule is SuiteClaim.BETTER:
            p_value = mcnemar_p(table.wins, table.losses)
        else:
            p_value = not_worse_p(table.wins, table.losses, table.items, rule.margin)
        holds = p_value <= 1 - confidence
        gain = (table.wins - table.losses) / table.items
        shown = (
            f"{gain:+.2%} on {table.items:,} items ({table.wins:,} won, {table.losses:,} lost), "
            f"p = {p_value:.2g}"
        )
    elif comparison.means is not None:
        means = comparison.means
        holds = means.low > 0 if rule.rule is SuiteClaim.BETTER else means.low >= -rule.margin
        shown = f"{means.difference:+.4g} on {means.items:,} items, at least {means.low:+.4g}"
    else:
        return OPEN, "the comparison has no counts"
    is_shown = "is" if holds else "is not shown to be"
    text = f"{is_shown} {word} than version {version} at {confidence:.2%}: {shown}"
    return (PASS if holds else FAIL), text


def _serving(limits: ServingLimits | None, report: ServingReport | None) -> Iterator[Finding]:
    if limits is None:
        return
    if report is None:
        yield _served("report", OPEN, "no export is reported")
        return
    if not report.loads:
        yield _served("load", FAIL, f"does not load: {report.error or 'no reason is given'}")
        return
    if limits.formats:
        ok = report.format in limits.formats
        text = f"format {report.format}; accepted: {', '.join(limits.formats)}"
        yield _served("format", PASS if ok else FAIL, text)
    p99 = next((one.p99_ms for one in report.latencies if one.batch == limits.batch), None)
    measured: tuple[tuple[str, float | None, float | None], ...] = (
        ("size_bytes", report.size_bytes or None, limits.max_bytes),
        ("memory_bytes", report.memory_bytes or None, limits.memory_bytes),
        ("load_s", report.load_s or None, limits.load_s),
        (f"p99_ms at batch {limits.batch}", p99, limits.p99_ms),
        ("difference", report.difference, limits.difference),
    )
    for name, value, limit in measured:
        if limit is None:
            continue
        if value is None:
            yield _served(name, OPEN, f"not measured; the limit is {limit:,g}")
        else:
            verdict = PASS if value <= limit else FAIL
            yield _served(name, verdict, f"{value:,g}; the limit is {limit:,g}")


def _served(name: str, verdict: Verdict, text: str) -> Finding:
    return Finding(subject=f"serving {name}", verdict=verdict, text=text)


def _approvals(gate: Gate, candidate: Registered) -> Iterator[Finding]:
    if not gate.approvals:
        return
    users = approvers(gate, candidate)
    ok = len(users) >= gate.approvals
    names = f": {', '.join(users)}" if users else ""
    text = f"{len(users)} of {gate.approvals} approvals{names}"
    yield Finding(subject="approvals", verdict=PASS if ok else OPEN, text=text)


def approvers(gate: Gate, candidate: Registered) -> list[str]:
    """Those whose approvals count: not the user who registered the version."""
    users = dict.fromkeys(one.user for one in candidate.approvals)
    return [
        user
        for user in users
        if user != candidate.user and (not gate.approvers or user in gate.approvers)
    ]
