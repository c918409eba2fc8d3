"""Why a rank ended: one table, read from the top; the first rule that fits decides.

docs/concepts/faults.md gives the reason for each rule. A change here needs a test of the rule.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import dataclass

from gangline_schemas.events.faults import FailureCause
from gangline_schemas.events.workers import ExitReason, WorkerExited

LAUNCH_CONFIG_EXIT = 78  # EX_CONFIG: what the user gave cannot be launched
_STORAGE_EXITS = {65: "found its checkpoint damaged", 74: "could not save its checkpoint"}
_TEMPORARY_EXIT = 75  # EX_TEMPFAIL: what it needed was away; sysexits.h has 65 and 74 too
_SHELL_SIGNAL_BASE = 128  # a shell reports its child's death by signal n as 128 + n
_NO_FAULT = {ExitReason.FINISHED, ExitReason.STOPPED, ExitReason.FENCED}

_OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|\bMemoryError\b|Cannot allocate memory"
    r"|DefaultCPUAllocator: can't allocate",
    re.IGNORECASE,
)
_BAD_DEVICE = re.compile(
    r"\bXid\b|uncorrectable ECC|no CUDA-capable device|CUDA driver initialization failed"
    r"|GPU has fallen off the bus|No space left on device|Input/output error"
    r"|Stale file handle",
    re.IGNORECASE,
)
_COLLATERAL = re.compile(
    r"Connection closed by peer|Connection reset|Broken pipe|Socket Timeout"
    r"|Connection refused|recvValue failed|failed to recv|Failed to recv"
    r"|DistBackendError|DistNetworkError|DistStoreError|\bNCCL\b|ProcessGroupNCCL"
    r"|Watchdog caught collective operation timeout|heartbeat monitor"
    r"|Timed out waiting .*(recv|send|gloo|clients)|\bgloo\b.*(timeout|closed|reset)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: when it `fits`, the failure is of this cause.

    `collateral`: another rank's failure may explain this one, so the verdict waits for it.
    `avoid_node`: the next attempt should not use this node if others have room.
    """

    name: str
    fits: Callable[[WorkerExited], bool]
    cause: FailureCause
    says: str
    collateral: bool = False
    avoid_node: bool = False


def death_signal(exited: WorkerExited) -> int | None:
    """The signal that ended the rank's program, also when a shell reported it as 128 + n."""
    if exited.signal is not None:
        return exited.signal
    if exited.exit_code is not None and exited.exit_code > _SHELL_SIGNAL_BASE:
        number = exited.exit_code - _SHELL_SIGNAL_BASE
        if number in signal.valid_signals():
            return number
    return None


def _aborted_by_peer(exited: WorkerExited) -> bool:
    return death_signal(exited) == signal.SIGABRT and bool(_COLLATERAL.search(exited.message))


def _failed(exited: WorkerExited) -> bool:
    return exited.exit_code not in {None, 0}


TABLE: tuple[Rule, ...] = (
    Rule(
        "lease lost",
        lambda exited: exited.reason is ExitReason.LEASE_LOST,
        FailureCause.NODE,
        "its node was cut off from the bus longer than its lease",
        avoid_node=True,
    ),
    Rule(
        "launch refused",
        lambda exited: (
            exited.reason is ExitReason.LAUNCH_FAILED and exited.exit_code == LAUNCH_CONFIG_EXIT
        ),
        FailureCause.USER_ERROR,
        "it cannot be launched as submitted",
    ),
    Rule(
        "launch failed",
        lambda exited: exited.reason is ExitReason.LAUNCH_FAILED,
        FailureCause.INFRASTRUCTURE,
        "its node could not launch it",
        avoid_node=True,
    ),
    Rule(
        "out of memory",
        lambda exited: exited.out_of_memory or bool(_OUT_OF_MEMORY.search(exited.message)),
        FailureCause.OUT_OF_MEMORY,
        "ran out of memory; raise resources.memory_per_gpu_gb or lower the batch size",
    ),
    Rule(
        "bad device",
        lambda exited: bool(_BAD_DEVICE.search(exited.message)),
        FailureCause.INFRASTRUCTURE,
        "hit a fault of its node's hardware or disk",
        avoid_node=True,
    ),
    Rule(
        "aborted after a peer's death",
        _aborted_by_peer,
        FailureCause.INFRASTRUCTURE,
        "lost the connection to its peers",
        collateral=True,
    ),
    Rule(
        "signal",
        lambda exited: death_signal(exited) is not None,
        FailureCause.PROCESS,
        "was ended by {signal}",
    ),
    Rule(
        "lost its peers",
        lambda exited: _failed(exited) and bool(_COLLATERAL.search(exited.message)),
        FailureCause.INFRASTRUCTURE,
        "lost the connection to its peers",
        collateral=True,
    ),
    *(
        Rule(
            f"storage, exit code {code}",
            lambda exited, code=code: exited.exit_code == code,  # type: ignore[misc]
            FailureCause.INFRASTRUCTURE,
            says,
            avoid_node=True,
        )
        for code, says in _STORAGE_EXITS.items()
    ),
    Rule(
        "temporary failure",
        lambda exited: exited.exit_code == _TEMPORARY_EXIT,
        FailureCause.INFRASTRUCTURE,
        "ended because something that it needed was away",
    ),
    Rule(
        "exit code",
        _failed,
        FailureCause.USER_ERROR,
        "exited with code {exit_code}",
    ),
    Rule(
        "no status",
        lambda _: True,
        FailureCause.INFRASTRUCTURE,
        "ended without a status that its agent could read",
    ),
)


def classify(exited: WorkerExited) -> Rule | None:
    """The row that explains this exit; None when it is no failure."""
    if exited.reason in _NO_FAULT:
        return None
    return next(rule for rule in TABLE if rule.fits(exited))


def describe(rule: Rule, exited: WorkerExited) -> str:
    """One sentence about the exit for users, with the rank's last line if it left one."""
    number = death_signal(exited)
    says = rule.says.format(
        exit_code=exited.exit_code,
        signal=_signal_name(number) if number is not None else "a signal",
    )
    last = exited.message.strip().rpartition("\n")[2].strip()[:400]
    return f"rank {exited.rank} on {exited.node_id} {says}" + (f": {last}" if last else "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
