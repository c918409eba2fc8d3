"""The signs in a rank's status and last words: patterns of messages, Xids, signals, exceptions.

`classify.py` says what each sign means. A program chooses its last words: the patterns need time in
proportion to them, so no repetition without a bound follows another one.
"""

from __future__ import annotations

import re
import signal

from gangline_schemas.events.workers import WorkerExited

_SHELL_SIGNAL_BASE = 128  # a shell reports its child's death by signal n as 128 + n
OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|\bMemoryError\b|^(?!.*\bibv_).*Cannot allocate memory"
    r"|DefaultCPUAllocator: can't allocate|CU(?:BLAS|DNN)_STATUS_ALLOC_FAILED"
    r"|workers are out of shared memory",
    re.IGNORECASE | re.MULTILINE,
)
"""InfiniBand's verbs report a limit of locked memory as memory that cannot be allocated."""
BAD_DATA = re.compile(r"\bshard \S+(?: block \d+)? is corrupt", re.IGNORECASE)
_XID = re.compile(r"\bXid(?:\s*\([^)]{0,64}\))?[:\s]+(\d{1,3})\b")
BAD_DEVICE = re.compile(
    r"\bXid\b|uncorrectable (?:ECC|NVLink)|no CUDA-capable device"
    r"|CUDA driver initialization failed|GPU has fallen off the bus|GPU is lost"
    r"|system not yet initialized|devices?(?:\(s\) is/| )are busy or unavailable"
    r"|hardware stack error|over nvlink or a hardware error|CUDA unknown error"
    r"|CUDA error: unknown error|Cuda failure(?: \d{1,4})? 'unknown error'"
    r"|Driver/library version mismatch|NVML/RM version mismatch|No CUDA GPUs are available"
    r"|unsupported display driver / cuda driver combination",
    re.IGNORECASE,
)
ASSERTED = re.compile(r"device-side assert triggered", re.IGNORECASE)
BAD_ACCESS = re.compile(
    r"illegal memory access|misaligned address|unspecified launch failure|invalid program counter"
    r"|illegal instruction was encountered|the launch timed out and was terminated"
    r"|operation not supported on global/shared address space"
    r"|CU(?:BLAS|DNN|SOLVER|SPARSE)_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR)"
    r"|CUFFT_(?:EXEC_FAILED|INTERNAL_ERROR)",
    re.IGNORECASE,
)
BAD_DISK = re.compile(
    r"No space left on device|Disk quota exceeded|Input/output error|Stale file handle"
    r"|Read-only file system|Transport endpoint is not connected|Remote I/O error"
    r"|Cannot send after transport endpoint shutdown|Structure needs cleaning|Host is down",
    re.IGNORECASE,
)
BAD_LINK = re.compile(
    r"local work queue catastrophic error|ibv_\w.{0,300} failed|No route to host"
    r"|Network is unreachable",
    re.IGNORECASE,
)
LOST_WORKER = re.compile(r"DataLoader worker \(pid.{0,200}?(?:is killed by|exited unexpectedly)")
COLLATERAL = re.compile(
    r"Connection closed by (?:remote )?peer|Connection reset|Broken pipe|Socket Timeout"
    r"|Connection refused|recvValue failed|failed to recv|Failed to recv"
    r"|DistBackendError|DistNetworkError|DistStoreError|\bNCCL\b|ProcessGroupNCCL"
    r"|Watchdog caught collective operation timeout|heartbeat monitor"
    r"|Timed out waiting .{0,300}(recv|send|gloo|clients)|in store based barrier"
    r"|\bgloo\b.{0,300}(timeout|closed|reset)",
    re.IGNORECASE,
)
NOT_FINITE = frozenset({"NotFiniteError", "LossSpikeError"})
"""Exceptions of `gangline_worker`."""
NAN = re.compile(
    r"returned nan values in its \d+th output|\bloss\b.{0,60}\bis nan or inf", re.IGNORECASE
)
"""Messages of torch's anomaly detection and Lightning's callbacks."""
_RAISED = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)(?::|$)", re.MULTILINE)
STORE_AWAY = re.compile(
    r"An error occurred \((?:SlowDown|Throttl\w+|TooManyRequests\w*|RequestTimeout|InternalError"
    r"|ServiceUnavailable|429|5\d\d)\)|\b(?:429 Client|5\d\d Server) Error\b"
    r"|LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub"
    r"|OSError: We couldn't connect to 'https://"
)
"""Final errors of clients of S3, of Hugging Face's hub and of other stores, after their retries."""
_OF_RANK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
"""The text that torch.distributed puts before each line of a traceback that ends a program."""
_SAYS_NOTHING = re.compile(
    r"\bNCCL INFO\b|^NCCL version\b|destroy_process_group\(\) was not called before program exit"
    r"|process group has NOT been destroyed before"
)
"""Of NCCL and torch.distributed, whatever ended the program; errors of torch have its version."""
_WARNED = re.compile(r"^(?:\[rank\d+\]:)?\[[IW]\d{3,4} [^\]\n]{0,200}\]", re.MULTILINE)
"""The head of a torch warning: its source file (ProcessGroupNCCL.cpp) says nothing either."""
_ENDED_WITH = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*(?:Error|Exception))(?::.*|)$", re.MULTILINE
)
"""The line of a traceback that names its exception."""
_ROOT_CAUSE = "Root Cause (first observed failure)"
_RECEIVED = re.compile(r"traceback\s{0,9}: Signal (\d{1,2}) \(SIG\w{1,12}\) received by PID")
"""Of the summary with which torchrun ends, whose own exit code is 1."""
AWAY = frozenset(
    {
        "ChunkedEncodingError", "ClientConnectorError", "ClientOSError", "ConnectError",
        "ConnectTimeout", "ConnectTimeoutError", "ConnectionAbortedError", "ConnectionClosedError",
        "ConnectionError", "EndpointConnectionError", "GatewayTimeout", "IncompleteRead",
        "MaxRetryError", "NameResolutionError", "ProtocolError", "ReadTimeout",
        "ReadTimeoutError", "RemoteDisconnected", "RemoteProtocolError", "ResponseStreamingError",
        "ServerDisconnectedError", "ServiceUnavailable", "TimeoutError", "TooManyRequests",
        "URLError", "gaierror",
    }
)  # fmt: skip
PYTHON: tuple[tuple[str, frozenset[str], str], ...] = (
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
_OF_PROGRAM = frozenset[str]().union(*(names for _, names, _ in PYTHON))
_NAMES = AWAY.union(NOT_FINITE, *(names for _, names, _ in PYTHON))


def death_signal(exited: WorkerExited) -> int | None:
    """The signal that ended the rank's program, or the first process that torchrun lost in it.

    A shell reports it as 128 + n.
    """
    if exited.signal is not None:
        return exited.signal
    _, _, root_cause = exited.message.rpartition(_ROOT_CAUSE)
    found = _RECEIVED.search(root_cause) if root_cause != exited.message else None
    number = int(found[1]) if found else (exited.exit_code or 0) - _SHELL_SIGNAL_BASE
    return number if number in signal.valid_signals() else None


def xid(exited: WorkerExited) -> int | None:
    """The first Xid of the driver in the rank's last words."""
    found = _XID.search(exited.message)
    return int(found[1]) if found else None


def raised(exited: WorkerExited) -> str | None:
    """The last error or exception of Python that the rank's last words end a traceback with."""
    words = _OF_RANK.sub("", exited.message)
    names = [name for name in _RAISED.findall(words) if name in _NAMES]
    return names[-1] if names else None


def of_program(exited: WorkerExited) -> bool:
    """Whether the rank's last traceback ends with an error of its program, as `PYTHON` has them."""
    found = list(_ENDED_WITH.finditer(_OF_RANK.sub("", exited.message)))
    return bool(found) and found[-1][1] in _OF_PROGRAM


def without_noise(exited: WorkerExited) -> WorkerExited:
    """The same without lines that NCCL and torch print in any run."""
    lines = exited.message.splitlines(keepends=True)
    kept = "".join(line for line in lines if not _SAYS_NOTHING.search(line))
    return exited.model_copy(update={"message": _WARNED.sub("", kept)})


def last_line(exited: WorkerExited) -> str:
    """The line that names the exception that ended it, else its last line; "" when it left none.

    Up to 400 characters. torch adds lines of advice to an error of CUDA.
    """
    words = _OF_RANK.sub("", exited.message).strip()
    named = list(_ENDED_WITH.finditer(words)) if exited.exit_code == 1 else []
    line = named[-1][0] if named else words.rpartition("\n")[2].strip()
    return line[:400]
