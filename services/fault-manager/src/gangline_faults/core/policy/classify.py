"""Why a rank ended: one table, read from the top; the first rule that fits decides.

docs/concepts/faults.md gives the reason for each rule. A change here needs a test of the rule.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import dataclass

from gangline_schemas.events.faults import FailureCause, FailureClass
from gangline_schemas.events.workers import ExitReason, WorkerExited

LAUNCH_CONFIG_EXIT = 78  # EX_CONFIG: what the user gave cannot be launched
DATA_EXIT = 66  # EX_NOINPUT: a block of a data shard is not what its manifest says
_STORAGE_EXITS = {65: "found its checkpoint damaged", 74: "could not save its checkpoint"}
_TEMPORARY_EXIT = 75  # EX_TEMPFAIL: what it needed was away; sysexits.h has 65, 66 and 74 too
_COMMAND_EXITS = {
    2: "ended with code 2, as programs do that do not accept their arguments or settings",
    126: "could not be started: its command is not an executable program",
    127: "could not be started: its command was not found; is it in the image or the workdir?",
}
_SHELL_SIGNAL_BASE = 128  # a shell reports its child's death by signal n as 128 + n
_NO_FAULT = {ExitReason.FINISHED, ExitReason.STOPPED, ExitReason.FENCED}

_OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|\bMemoryError\b|Cannot allocate memory"
    r"|DefaultCPUAllocator: can't allocate|CU(?:BLAS|DNN)_STATUS_ALLOC_FAILED"
    r"|workers are out of shared memory",
    re.IGNORECASE,
)
_BAD_DATA = re.compile(r"\bshard \S+(?: block \d+)? is corrupt", re.IGNORECASE)
_XID = re.compile(r"\bXid(?:\s*\([^)]*\))?[:\s]+(\d{1,3})\b")
PROGRAM_XIDS = frozenset({8, 13, 31, 32, 43, 45, 68, 69})
"""NVIDIA's catalog: the program or its channel is at fault, and starting it again is enough."""
CONTAINED_XIDS = frozenset({94})
"""An ECC error that hit this program alone: the GPU works on, and resets when it is free."""
_BAD_DEVICE = re.compile(
    r"\bXid\b|uncorrectable (?:ECC|NVLink)|no CUDA-capable device"
    r"|CUDA driver initialization failed|GPU has fallen off the bus|GPU is lost"
    r"|system not yet initialized|is/are busy or unavailable|hardware stack error"
    r"|over nvlink or a hardware error|CUDA unknown error|CUDA error: unknown error"
    r"|Driver/library version mismatch|NVML/RM version mismatch",
    re.IGNORECASE,
)
_ASSERTED = re.compile(r"device-side assert triggered", re.IGNORECASE)
_BAD_ACCESS = re.compile(
    r"illegal memory access|misaligned address|unspecified launch failure"
    r"|illegal instruction was encountered|the launch timed out and was terminated"
    r"|CU(?:BLAS|DNN)_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR)",
    re.IGNORECASE,
)
_BAD_DISK = re.compile(
    r"No space left on device|Disk quota exceeded|Input/output error|Stale file handle"
    r"|Read-only file system|Transport endpoint is not connected",
    re.IGNORECASE,
)
_BAD_LINK = re.compile(
    r"local work queue catastrophic error|ibv_\w+.* failed|No route to host"
    r"|Network is unreachable",
    re.IGNORECASE,
)
_LOST_WORKER = re.compile(r"DataLoader worker \(pid.{0,200}?(?:is killed by|exited unexpectedly)")
_COLLATERAL = re.compile(
    r"Connection closed by peer|Connection reset|Broken pipe|Socket Timeout"
    r"|Connection refused|recvValue failed|failed to recv|Failed to recv"
    r"|DistBackendError|DistNetworkError|DistStoreError|\bNCCL\b|ProcessGroupNCCL"
    r"|Watchdog caught collective operation timeout|heartbeat monitor"
    r"|Timed out waiting .*(recv|send|gloo|clients)|\bgloo\b.*(timeout|closed|reset)",
    re.IGNORECASE,
)
_NOT_FINITE = frozenset({"NotFiniteError", "LossSpikeError"})
"""Exceptions of `gangline_worker`."""
_NAN = re.compile(
    r"returned nan values in its \d+th output|\bloss\b.{0,60}\bis nan or inf", re.IGNORECASE
)
"""Messages of torch's anomaly detection and Lightning's callbacks."""
_RAISED = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)(?::|$)", re.MULTILINE)
_STORE_AWAY = re.compile(
    r"An error occurred \((?:SlowDown|Throttl\w+|TooManyRequests\w*|RequestTimeout|InternalError"
    r"|ServiceUnavailable|429|5\d\d)\)|\b(?:429 Client|5\d\d Server) Error\b"
)
"""Final errors of clients of S3 and of other stores over HTTP, after their retries."""
_OF_RANK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
"""The text that torch.distributed puts before each line of a traceback that ends a program."""
_AWAY = frozenset(
    {
        "ConnectionError", "ConnectTimeout", "ConnectTimeoutError", "EndpointConnectionError",
        "MaxRetryError", "NameResolutionError", "ReadTimeout", "ReadTimeoutError", "TimeoutError",
        "URLError", "gaierror",
    }
)  # fmt: skip
_PYTHON: tuple[tuple[str, frozenset[str], str], ...] = (
    (
        "import",
        frozenset({"ImportError", "ModuleNotFoundError"}),
        "could not import what it needs: put it into the image or the workdir",
    ),
    (
        "syntax",
        frozenset({"SyntaxError", "IndentationError", "TabError"}),
        "could not read its program: it is not valid Python for this interpreter",
    ),
    (
        "file",
        frozenset({"FileNotFoundError", "NotADirectoryError", "PermissionError"}),
        "could not open a file: give paths that every node has, or put it into the workdir",
    ),
    (
        "program",
        frozenset(
            {
                "ArithmeticError", "AssertionError", "AttributeError", "FloatingPointError",
                "IndexError", "JSONDecodeError", "KeyError", "NameError", "NotImplementedError",
                "OverflowError", "RecursionError", "StopIteration", "TypeError",
                "UnboundLocalError", "UnicodeDecodeError", "ValidationError", "ValueError",
                "YAMLError", "ZeroDivisionError",
            }
        ),
        "raised an error that comes again with the same program and input: see its log",
    ),
)  # fmt: skip
"""Errors of Python by the last name that a traceback ends with."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: when it `fits`, the failure is of this cause.

    `collateral`: another rank's failure may explain this one, so the verdict waits for it.
    `avoid_node`: the next attempt should not use this node if others have room.
    """

    name: str
    fits: Callable[[WorkerExited], bool]
    cause: FailureCause
    failure_class: FailureClass
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


def xid(exited: WorkerExited) -> int | None:
    """The first Xid of the driver in the rank's last words."""
    found = _XID.search(exited.message)
    return int(found[1]) if found else None


def raised(exited: WorkerExited) -> str | None:
    """The last error or exception of Python that the rank's last words end a traceback with."""
    words = _OF_RANK.sub("", exited.message)
    names = [name for name in _RAISED.findall(words) if name in _NAMES]
    return names[-1] if names else None


_NAMES = _AWAY.union(_NOT_FINITE, *(names for _, names, _ in _PYTHON))

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
        "out of memory",
        lambda exited: exited.out_of_memory or bool(_OUT_OF_MEMORY.search(exited.message)),
        FailureCause.OUT_OF_MEMORY,
        FailureClass.OUT_OF_MEMORY,
        "ran out of memory; raise resources.memory_per_gpu_gb or lower the batch size",
    ),
    Rule(
        "data shard",
        lambda exited: exited.exit_code == DATA_EXIT or bool(_BAD_DATA.search(exited.message)),
        FailureCause.INFRASTRUCTURE,
        FailureClass.DATA,
        "read data that differs from its manifest",
    ),
    Rule(
        "not finite",
        lambda exited: (
            _failed(exited) and (raised(exited) in _NOT_FINITE or bool(_NAN.search(exited.message)))
        ),
        FailureCause.PROCESS,
        FailureClass.NAN,
        "could not train on",
    ),
    Rule(
        "Xid of a program",
        lambda exited: xid(exited) in PROGRAM_XIDS,
        FailureCause.PROCESS,
        FailureClass.PROCESS,
        "was stopped by its GPU's driver",
    ),
    Rule(
        "contained ECC error",
        lambda exited: xid(exited) in CONTAINED_XIDS,
        FailureCause.INFRASTRUCTURE,
        FailureClass.DEVICE,
        "lost memory of its GPU that others do not use",
    ),
    Rule(
        "bad device",
        lambda exited: bool(_BAD_DEVICE.search(exited.message)),
        FailureCause.INFRASTRUCTURE,
        FailureClass.DEVICE,
        "hit a fault of its node's hardware",
        avoid_node=True,
    ),
    Rule(
        "device assert",
        lambda exited: bool(_ASSERTED.search(exited.message)),
        FailureCause.USER_ERROR,
        FailureClass.USER_ERROR,
        "gave its GPU an index out of range; CUDA_LAUNCH_BLOCKING=1 shows where",
    ),
    Rule(
        "bad access on a GPU",
        lambda exited: bool(_BAD_ACCESS.search(exited.message)),
        FailureCause.PROCESS,
        FailureClass.PROCESS,
        "was stopped by its GPU",
    ),
    Rule(
        "bad disk",
        lambda exited: bool(_BAD_DISK.search(exited.message)),
        FailureCause.INFRASTRUCTURE,
        FailureClass.STORAGE,
        "could not use its node's disk or a mount",
        avoid_node=True,
    ),
    Rule(
        "data loader's worker",
        lambda exited: _failed(exited) and bool(_LOST_WORKER.search(exited.message)),
        FailureCause.PROCESS,
        FailureClass.PROCESS,
        "lost a process that read its data",
    ),
    Rule(
        "bad link",
        lambda exited: bool(_BAD_LINK.search(exited.message)),
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
        lambda exited: _failed(exited) and bool(_COLLATERAL.search(exited.message)),
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
            or raised(exited) in _AWAY
            or (_failed(exited) and bool(_STORE_AWAY.search(exited.message)))
        ),
        FailureCause.INFRASTRUCTURE,
        FailureClass.NETWORK,
        "ended because something that it needed was away",
    ),
    *(
        Rule(
            f"Python: {name}",
            lambda exited, names=names: (  # type: ignore[misc]
                _failed(exited) and raised(exited) in names
            ),
            FailureCause.USER_ERROR,
            FailureClass.USER_ERROR,
            says,
        )
        for name, names, says in _PYTHON
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
    last = _OF_RANK.sub("", exited.message.strip().rpartition("\n")[2].strip())[:400]
    return f"rank {exited.rank} on {exited.node_id} {says}" + (f": {last}" if last else "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
