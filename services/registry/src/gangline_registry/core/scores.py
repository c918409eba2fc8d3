"""The scores of an evaluation as one object in the store: item ids and numbers, in one order."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping

from gangline_schemas.models import Evaluation

PREFIX = "registry"


class BadScores(Exception):
    """Bytes are no scores; the message says why."""


def encode(scores: Mapping[str, float]) -> bytes:
    """Canonical bytes: equal scores are equal bytes."""
    return json.dumps(sorted(scores.items()), separators=(",", ":")).encode()


def decode(raw: bytes, digest: str) -> dict[str, float]:
    """The scores. Raises BadScores if they are not those of the digest."""
    if hashlib.sha256(raw).hexdigest() != digest:
        raise BadScores("the object of scores is damaged")
    return {str(name): float(value) for name, value in json.loads(raw)}


def described(team: str, raw: bytes, scores: Mapping[str, float], **fields: object) -> Evaluation:
    """The evaluation that these scores are, with the key of their object."""
    digest = hashlib.sha256(raw).hexdigest()
    return Evaluation.model_validate(
        {
            "digest": digest,
            "key": f"{PREFIX}/{team}/scores/{digest}.json",
            "items": len(scores),
            "binary": all(value in {0.0, 1.0} for value in scores.values()),
            "mean": math.fsum(scores.values()) / len(scores),
            **fields,
        }
    )
