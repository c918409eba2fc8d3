"""How the ends of ranks are reported.

An orderly exit is held back until the rank's saves are committed: see `Gang.awaits_commit`.
The exit of rank 0 of a job with outputs waits until these are in the store.
"""

from __future__ import annotations

from gangline_schemas.events.workers import ExitReason, NodeInfo, WorkerExited

from . import announce
from .effects import Effect, Note, StoreOutputs
from .gang import Gang, Phase, Rank
from .inputs import OutputsStored, RankExited
from .keys import Moment

_EXIT_BAD_OUTPUT, _EXIT_STORE_AWAY = 1, 75  # as if its program had found it
EXIT_CONFIG = 78  # sysexits.h EX_CONFIG: the job as submitted cannot start
MESSAGE_LIMIT = 4096
_COMMIT_WAIT_S = 30.0
_ORDERLY = {ExitReason.FINISHED, ExitReason.STOPPED}


def never_ran(
    node: NodeInfo,
    gang: Gang,
    rank: Rank,
    message: str,
    exit_code: int | None = None,
    damaged_object: str | None = None,
) -> list[Effect]:
    """Report the end of a rank that has no process and will get none."""
    rank.phase = Phase.GONE
    event = announce.exit_of(node, gang, rank, rank.ending or ExitReason.LAUNCH_FAILED)
    known = {
        "exit_code": exit_code,
        "message": message[:MESSAGE_LIMIT],
        "damaged_object": damaged_object,
    }
    return _report(rank, event.model_copy(update=known))


def on_exited(node: NodeInfo, gang: Gang, rank: Rank, item: RankExited, at: Moment) -> list[Effect]:
    """Report the end of a rank's process, now or once its saves are committed."""
    rank.phase = Phase.GONE
    rank.connected = False
    last = announce.trial_point(gang, rank, rank.points.take_held())
    reason = rank.ending or ExitReason.FAILED
    if item.code == 0:  # also when it was to be killed; one that was stopped has not finished
        reason = ExitReason.STOPPED if gang.stop is not None else ExitReason.FINISHED
    failed = reason is ExitReason.FAILED
    known = {
        "exit_code": item.code,
        "signal": item.signal,
        "out_of_memory": item.out_of_memory and failed,
        "gpu_memory_taken": item.gpu_memory_taken and failed,
        "message": item.last_words[-MESSAGE_LIMIT:],
        "damaged_object": rank.damaged_object if failed else None,
    }
    event = announce.exit_of(node, gang, rank, reason).model_copy(update=known)
    if reason not in _ORDERLY or gang.over:
        return [*last, *_report(rank, event)]
    rank.held_exit, rank.held_until_s = event, at.mono_s + _COMMIT_WAIT_S
    if reason is ExitReason.FINISHED and _leaves_outputs(gang, rank):
        rank.storing = True
        return [*last, StoreOutputs(rank.key)]
    return [*last, *report_held(gang, at)]


def on_stored(
    node: NodeInfo, gang: Gang, rank: Rank, item: OutputsStored, at: Moment
) -> list[Effect]:
    """Announce the outputs, then the exit; without them the rank has failed."""
    if not rank.storing:
        return []
    rank.storing = False
    if not item.problem:
        outputs = [
            announce.output(node, gang, rank, name, artifact)
            for name, artifact in item.outputs.items()
        ]
        return [*outputs, *report_held(gang, at)]
    if rank.held_exit is not None:
        failed = {
            "reason": ExitReason.FAILED,
            "exit_code": _EXIT_BAD_OUTPUT if item.user_fault else _EXIT_STORE_AWAY,
            "message": item.problem[:MESSAGE_LIMIT],
        }
        rank.held_exit = rank.held_exit.model_copy(update=failed)
    return [Note("outputs.not.stored", gang.key, item.problem), *report_held(gang, at)]


def _leaves_outputs(gang: Gang, rank: Rank) -> bool:
    artifacts = gang.allocation.spec.artifacts
    return rank.key.rank == 0 and artifacts is not None and bool(artifacts.outputs)


def report_held(gang: Gang, at: Moment | None) -> list[Effect]:
    """Report the exits that wait for no commit at that time; all of them, if it is None."""
    out: list[Effect] = []
    for rank in gang.ranks.values():
        held = rank.held_exit
        if held is not None and (at is None or not gang.awaits_commit(rank, at.mono_s)):
            out += _report(rank, held)
    return out


def _report(rank: Rank, event: WorkerExited) -> list[Effect]:
    rank.held_exit = None
    return [announce.exited(event)]
