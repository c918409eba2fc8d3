"""Why a rank ended: one table, read from the top; the first rule that fits decides.

docs/concepts/faults.md gives the reason for each rule. A change here needs a test of the rule.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

from gangline_faults.core.policy import last_words
from gangline_faults.core.policy.last_words import death_signal
from gangline_schemas.events.faults import FailureCause, FailureClass
from gangline_schemas.events.workers import ExitReason, WorkerExited
from gangline_schemas.xids import CONTAINED_XIDS, PROGRAM_XIDS

LAUNCH_CONFIG_EXIT = 78  # EX_CONFIG: what the user gave cannot be launched
DATA_EXIT = 66  # EX_NOINPUT: a block of a data shard is not what its manifest says
_STORAGE_EXITS = {65: "found its checkpoint damaged", 74: "could not save its checkpoint"}
_TEMPORARY_EXIT = 75  # EX_TEMPFAIL: what it needed was away; sysexits.h has 65, 66 and 74 too
_COMMAND_EXITS = {
    2: "ended with code 2, as programs do that do not accept their arguments or settings",
    126: "could not be started: its command is not an executable program",
    127: "could not be started: its command was not found; is it in the image or the workdir?",
}
_NO_FAULT = {ExitReason.FINISHED, ExitReason.STOPPED, ExitReason.FENCED}


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: when it `fits`, the failure is of this cause.

    `collateral`: another rank's failure may explain this one, so the verdict waits for it.
    `avoid_node`: the next attempt should not use this node if others have room.
    `of_gpus`: only of gangs that have GPUs; others see none, and the node is well.
    """

    name: str
    fits: Callable[[WorkerExited], bool]
    cause: FailureCause
    failure_class: FailureClass
    says: str
    collateral: bool = False
    avoid_node: bool = False
    of_gpus: bool = False


def _aborted_by_peer(exited: WorkerExited) -> bool:
    by_peer = last_words.COLLATERAL.search(exited.message)
    return death_signal(exited) == signal.SIGABRT and bool(by_peer)


def _failed(exited: WorkerExited) -> bool:
    return exited.exit_code not in {None, 0}


TABLE: tuple[Rule, ...] = (
    Rule(
        "lease lost",
        lambda exited: exited.reason is ExitReason.LEASE_LOST,
        FailureCause.NODE,
        FailureClass.NODE,
        "its node was cut off from the bus longer than its lease",
        avoid_node=True,
    ),
    Rule(
        "launch refused",
        lambda exited: (
            exited.reason is ExitReason.LAUNCH_FAILED and exited.exit_code == LAUNCH_CONFIG_EXIT
        ),
        FailureCause.USER_ERROR,
        FailureClass.USER_ERROR,
        "cannot be launched as submitted",
    ),
    Rule(
        "damaged checkpoint",
        lambda exited: exited.damaged_object is not None,
        FailureCause.INFRASTRUCTURE,
        FailureClass.STORAGE,
        "could not be launched: its checkpoint is damaged",
        avoid_node=True,
    ),
    Rule(
        "launch failed",
        lambda exited: exited.reason is ExitReason.LAUNCH_FAILED,
        FailureCause.INFRASTRUCTURE,
        FailureClass.LAUNCH,
        "its node could not launch it",
        avoid_node=True,
    ),
    Rule(
        "GPU memory of others",
        lambda exited: exited.gpu_memory_taken,
        FailureCause.INFRASTRUCTURE,
        FailureClass.DEVICE,
        "lacked memory of its GPU that a process outside its gang has",
        avoid_node=True,
    ),
    Rule(
        "out of memory",
        lambda exited: (
            exited.out_of_memory or bool(last_words.OUT_OF_MEMORY.search(exited.message))
        ),
        FailureCause.OUT_OF_MEMORY,
        FailureClass.OUT_OF_MEMORY,
        "ran out of memory; raise resources.memory_per_gpu_gb or lower the batch size",
    ),
    Rule(
        "data shard",
        lambda exited: (
            exited.exit_code == DATA_EXIT or bool(last_words.BAD_DATA.search(exited.message))
        ),
        FailureCause.INFRASTRUCTURE,
        FailureClass.DATA,
        "read data that differs from its manifest",
    ),
    Rule(
        "not finite",
        lambda exited: (
            _failed(exited)
            and (
                last_words.raised(exited) in last_words.NOT_FINITE
                or bool(last_words.NAN.search(exited.message))
            )
        ),
        FailureCause.PROCESS,
        FailureClass.NAN,
        "could not train on",
    ),
    Rule(
        "Xid of a program",
        lambda exited: last_words.xid(exited) in PROGRAM_XIDS,
        FailureCause.PROCESS,
        FailureClass.PROCESS,
        "was stopped by its GPU's driver",
    ),
    Rule(
        "contained ECC error",
        lambda exited: last_words.xid(exited) in CONTAINED_XIDS,
        FailureCause.INFRASTRUCTURE,
        FailureClass.DEVICE,
        "lost memory of its GPU that others do not use",
    ),
    Rule(
        "bad device",
        lambda exited: bool(last_words.BAD_DEVICE.search(exited.message)),
        FailureCause.INFRASTRUCTURE,
        FailureClass.DEVICE,
        "hit a fault of its node's hardware",
        avoid_node=True,
        of_gpus=True,
    ),
    Rule(
        "device assert",
        lambda exited: bool(last_words.ASSERTED.search(exited.message)),
        FailureCause.USER_ERROR,
        FailureClass.USER_ERROR,
        "gave its GPU an index out of range; CUDA_LAUNCH_BLOCKING=1 shows where",
    ),
    Rule(
        "bad access on a GPU",
        lambda exited: bool(last_words.BAD_ACCESS.search(exited.message)),
        FailureCause.PROCESS,
        FailureClass.PROCESS,
        "was stopped by its GPU",
    ),
    Rule(
        "bad disk",
        lambda exited: bool(last_words.BAD_DISK.search(exited.message)),
        FailureCause.INFRASTRUCTURE,
        FailureClass.STORAGE,
        "could not use its node's disk or a mount",
        avoid_node=True,
    ),
    Rule(
        "data loader's worker",
        lambda exited: _failed(exited) and bool(last_words.LOST_WORKER.search(exited.message)),
        FailureCause.PROCESS,
        FailureClass.PROCESS,
        "lost a process that read its data",
    ),
    Rule(
        "bad link",
        lambda exited: bool(last_words.BAD_LINK.search(exited.message)),
        FailureCause.INFRASTRUCTURE,
        FailureClass.NETWORK,
        "could not reach others over its node's network",
        collateral=True,
        avoid_node=True,
    ),
    Rule(
        "aborted after a peer's death",
        _aborted_by_peer,
        FailureCause.INFRASTRUCTURE,
        FailureClass.NETWORK,
        "lost the connection to its peers",
        collateral=True,
    ),
    Rule(
        "signal",
        lambda exited: death_signal(exited) is not None,
        FailureCause.PROCESS,
        FailureClass.PROCESS,
        "was ended by {signal}",
    ),
    Rule(
        "lost its peers",
        lambda exited: (
            _failed(exited)
            and not last_words.of_program(exited)
            and bool(last_words.COLLATERAL.search(exited.message))
        ),
        FailureCause.INFRASTRUCTURE,
        FailureClass.NETWORK,
        "lost the connection to its peers",
        collateral=True,
    ),
    *(
        Rule(
            f"storage, exit code {code}",
            lambda exited, code=code: exited.exit_code == code,  # type: ignore[misc]
            FailureCause.INFRASTRUCTURE,
            FailureClass.STORAGE,
            says,
            avoid_node=True,
        )
        for code, says in _STORAGE_EXITS.items()
    ),
    Rule(
        "temporary failure",
        lambda exited: (
            exited.exit_code == _TEMPORARY_EXIT
            or last_words.raised(exited) in last_words.AWAY
            or (_failed(exited) and bool(last_words.STORE_AWAY.search(exited.message)))
        ),
        FailureCause.INFRASTRUCTURE,
        FailureClass.NETWORK,
        "ended because something that it needed was away",
    ),
    *(
        Rule(
            f"Python: {name}",
            lambda exited, names=names: (  # type: ignore[misc]
                _failed(exited) and last_words.raised(exited) in names
            ),
            FailureCause.USER_ERROR,
            FailureClass.USER_ERROR,
            says,
        )
        for name, names, says in last_words.PYTHON
    ),
    *(
        Rule(
            f"command, exit code {code}",
            lambda exited, code=code: exited.exit_code == code,  # type: ignore[misc]
            FailureCause.USER_ERROR,
            FailureClass.USER_ERROR,
            says,
        )
        for code, says in _COMMAND_EXITS.items()
    ),
    Rule(
        "exit code",
        _failed,
        FailureCause.USER_ERROR,
        FailureClass.USER_ERROR,
        "exited with code {exit_code}",
    ),
    Rule(
        "no status",
        lambda _: True,
        FailureCause.INFRASTRUCTURE,
        FailureClass.UNKNOWN,
        "ended without a status that its agent could read",
    ),
)


def classify(exited: WorkerExited, *, gpus: bool = True) -> Rule | None:
    """The row that explains this exit of a gang with or without GPUs; None: it is no failure."""
    if exited.reason in _NO_FAULT:
        return None
    exited = last_words.without_noise(exited)
    return next(rule for rule in TABLE if (gpus or not rule.of_gpus) and rule.fits(exited))


def describe(rule: Rule, exited: WorkerExited) -> str:
    """One sentence about the exit for users, with the rank's last line if it left one."""
    number = death_signal(exited)
    says = rule.says.format(
        exit_code=exited.exit_code,
        signal=_signal_name(number) if number is not None else "a signal",
    )
    last = last_words.last_line(last_words.without_noise(exited))
    return f"rank {exited.rank} on {exited.node_id} {says}" + (f": {last}" if last else "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
