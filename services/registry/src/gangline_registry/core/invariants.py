"""The invariants of the state."""

from __future__ import annotations

from collections.abc import Iterator

from gangline_registry.core.state import RegistryState
from gangline_schemas.models import Verdict


def violations(state: RegistryState) -> list[str]:
    """Sentences about what does not hold; [] when all is well. Cost: the aliases."""
    return [*_aliases(state), *_moves(state)]


def _aliases(state: RegistryState) -> Iterator[str]:
    for key, pointer in state.aliases.items():
        team, model, _ = key.split("/")
        if f"{team}/{model}" not in state.models:
            yield f"alias {key}: its model has no gate"
        if pointer.version and f"{team}/{model}/{pointer.version}" not in state.versions:
            yield f"alias {key}: points to version {pointer.version}, which is not registered"
    if state.projected > state.changes:
        yield f"{state.projected} changes are in MLflow, of {state.changes}"


def _moves(state: RegistryState) -> Iterator[str]:
    """The newest move: a gate moves on `pass` alone."""
    move = next(reversed(state.moves.values()), None)
    if move is None or move.kind != "gate":
        return
    judged = state.judged.get(move.evidence or 0)
    if judged is not None and judged.verdict is not Verdict.PASS:
        yield f"move {move.number}: was moved by a gate that said {judged.verdict}"
