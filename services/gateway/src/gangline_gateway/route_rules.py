"""The scope that each route needs of a token, and what the audit log calls a change.

A route without a line here needs `read` if it only reads, and else `admin`. A token may always end
itself, so that route decides by itself who may revoke what.
"""

from __future__ import annotations

from dataclasses import dataclass

from gangline_schemas.access import TokenScope

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_READ, _SUBMIT, _ADMIN = TokenScope.READ, TokenScope.SUBMIT, TokenScope.ADMIN
_ALIAS = "/v1/models/{model}/aliases/{alias}"
_VERSION = "/v1/models/{model}/versions/{version}"


@dataclass(frozen=True, slots=True)
class Rule:
    """Of one method of one route. `action`: its word in the audit log; None: it changes nothing."""

    scope: TokenScope
    action: str | None = None


_RULES = {
    "POST /v1/training-jobs": Rule(_SUBMIT, "job.submit"),
    "POST /training-runs": Rule(_SUBMIT, "job.submit"),
    "POST /v1/training-jobs/{job_id}/cancel": Rule(_SUBMIT, "job.cancel"),
    "POST /v1/training-jobs/{job_id}/priority": Rule(_SUBMIT, "job.priority"),
    "POST /training-runs/{run_id}/checkpoints/{epoch}/restore": Rule(_SUBMIT, "job.restore"),
    "POST /v1/training-jobs/{job_id}/checkpoints/{step}/pin": Rule(_SUBMIT, "checkpoint.pin"),
    "POST /v1/training-jobs/{job_id}/checkpoints/{step}/promote": Rule(
        _SUBMIT, "checkpoint.promote"
    ),
    "POST /v1/what-if": Rule(_READ),
    "POST /v1/code-bundles": Rule(_SUBMIT, "code.upload"),
    "POST /v1/runs/{run_id}/tags": Rule(_SUBMIT, "run.tag"),
    "POST /v1/studies": Rule(_SUBMIT, "study.submit"),
    "POST /hpo/studies": Rule(_SUBMIT, "study.submit"),
    "POST /v1/studies/{study_id}/stop": Rule(_SUBMIT, "study.stop"),
    "PUT /v1/pipelines/{name}": Rule(_SUBMIT, "pipeline.apply"),
    "DELETE /v1/pipelines/{name}": Rule(_SUBMIT, "pipeline.remove"),
    "POST /v1/pipelines/{name}/pause": Rule(_SUBMIT, "pipeline.pause"),
    "POST /v1/pipelines/{name}/runs": Rule(_SUBMIT, "pipeline.run"),
    "POST /v1/pipeline-runs/{run_id}/cancel": Rule(_SUBMIT, "pipeline.cancel"),
    "POST /v1/pipeline-runs/{run_id}/retry": Rule(_SUBMIT, "pipeline.retry"),
    "POST /v1/data/snapshots": Rule(_SUBMIT, "data.announce"),
    "POST /v1/profiles": Rule(_SUBMIT, "data.profile"),
    "POST /v1/models/{model}/versions": Rule(_SUBMIT, "model.register"),
    f"POST {_VERSION}/evaluations": Rule(_SUBMIT, "model.evaluate"),
    f"POST {_VERSION}/serving": Rule(_SUBMIT, "model.serve"),
    f"POST {_VERSION}/approvals": Rule(_ADMIN, "model.approve"),
    f"POST {_ALIAS}/promotions": Rule(_ADMIN, "model.promote"),
    f"POST {_ALIAS}/rollbacks": Rule(_ADMIN, "model.rollback"),
    "PUT /v1/models/{model}/gate": Rule(_ADMIN, "gate.set"),
    "DELETE /v1/models/{model}/gate": Rule(_ADMIN, "gate.remove"),
    "POST /v1/silences": Rule(_ADMIN, "silence.begin"),
    "POST /v1/silences/{number}/end": Rule(_ADMIN, "silence.end"),
    "POST /v1/data-approvals": Rule(_ADMIN, "data.approve"),
    "PUT /v1/teams/{team}": Rule(_ADMIN, "team.set"),
    "POST /v1/tokens": Rule(_ADMIN, "token.create"),
    "DELETE /v1/tokens/{token_id}": Rule(_READ, "token.revoke"),
    "POST /v1/node-tokens": Rule(_ADMIN, "node.token"),
    "DELETE /v1/node-tokens/{token_id}": Rule(_ADMIN, "node.token.revoke"),
    "POST /v1/nodes/join": Rule(_ADMIN, "node.join"),
    "POST /v1/nodes/{node_id}/drain": Rule(_ADMIN, "node.drain"),
}
OVERRIDE = "model.override"


def known(method: str, path: str) -> bool:
    """Whether a route has a line of its own, or only reads."""
    return method in _READING or f"{method} {path}" in _RULES


def rule_of(method: str, path: str) -> Rule:
    """The rule of a method of a route; `path` with the names of its parts in braces."""
    if method in _READING:
        return Rule(_READ)
    return _RULES.get(f"{method} {path}", Rule(_ADMIN, "other"))
