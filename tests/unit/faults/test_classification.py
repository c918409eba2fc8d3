"""The classification table: what a rank's end says about its cause."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from re import _parser as sre  # type: ignore[attr-defined]
from typing import Any

import pytest

from gangline_faults.core.policy import last_words
from gangline_faults.core.policy.classify import TABLE, classify, describe
from gangline_faults.core.policy.trends import LOST_XIDS
from gangline_schemas.events.faults import FailureCause, FailureClass
from gangline_schemas.events.workers import ExitReason, WorkerExited
from gangline_schemas.xids import CONTAINED_XIDS, PROGRAM_XIDS

ROOT = Path(__file__).parents[3]
NODE, USER, INFRASTRUCTURE = (
    FailureCause.NODE,
    FailureCause.USER_ERROR,
    FailureCause.INFRASTRUCTURE,
)


def ended(reason: ExitReason = ExitReason.FAILED, **fields: Any) -> WorkerExited:
    return WorkerExited(
        job_id="a", attempt=1, rank=0, node_id="n", incarnation="i", reason=reason, **fields
    )


def words(message: str) -> WorkerExited:
    return ended(exit_code=1, message=message)


ERROR = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n{}'
LACKED = (
    "CUDA out of memory. Tried to allocate 1.95 GiB. GPU 0 has a total capacity of 14.57 GiB of "
    "which 1.58 GiB is free. Process 2493055 has 12.02 GiB memory in use. Including non-PyTorch "
    "memory, this process has 966.00 MiB memory in use."
)
NCCL_ERROR = (
    "[rank1]: torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/"
    "c10d/NCCLUtils.cpp:94, {}, NCCL version 2.27.5\n[rank1]: ncclError: as it says.\n"
    "[rank1]: Last error:\n[rank1]: {}\n"
)
REMOTE = "socketProgress: Connection closed by remote peer n2<43210>"
NOT_LOCATED = "An error happened while trying to locate the file on the Hub and we cannot find it"
TORCHRUN = """
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
train.py FAILED
Failures:
  <NO_OTHER_FAILURES>
Root Cause (first observed failure):
[0]:
  rank      : 3 (local_rank: 3)
  exitcode  : -11 (pid: 12345)
  error_file: <N/A>
  traceback : Signal 11 (SIGSEGV) received by PID 12345
"""
ROWS: list[tuple[str, WorkerExited, FailureCause, FailureClass]] = [
    ("lease lost", ended(ExitReason.LEASE_LOST, signal=9), NODE, FailureClass.NODE),
    (
        "launch refused",
        ended(ExitReason.LAUNCH_FAILED, exit_code=78),
        USER,
        FailureClass.USER_ERROR,
    ),
    (
        "damaged checkpoint",
        ended(ExitReason.LAUNCH_FAILED, damaged_object="a/rank-0.bin"),
        INFRASTRUCTURE,
        FailureClass.STORAGE,
    ),
    ("launch failed", ended(ExitReason.LAUNCH_FAILED), INFRASTRUCTURE, FailureClass.LAUNCH),
    (
        "GPU memory of others",
        ended(exit_code=1, out_of_memory=True, gpu_memory_taken=True, message=f"E: {LACKED}"),
        INFRASTRUCTURE,
        FailureClass.DEVICE,
    ),
    (
        "out of memory",
        ended(exit_code=1, out_of_memory=True, message=f"E: {LACKED}"),
        FailureCause.OUT_OF_MEMORY,
        FailureClass.OUT_OF_MEMORY,
    ),
    (
        "out of memory",
        ended(signal=9, out_of_memory=True),
        FailureCause.OUT_OF_MEMORY,
        FailureClass.OUT_OF_MEMORY,
    ),
    *(
        ("out of memory", words(text), FailureCause.OUT_OF_MEMORY, FailureClass.OUT_OF_MEMORY)
        for text in (
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(h)`",
            "DataLoader worker (pid 9) is killed by signal: its workers are out of shared memory.",
            "a line before\nOSError: [Errno 12] Cannot allocate memory",
        )
    ),
    ("data shard", ended(exit_code=66), INFRASTRUCTURE, FailureClass.DATA),
    *(
        ("data shard", ended(exit_code=1, message=text), INFRASTRUCTURE, FailureClass.DATA)
        for text in (
            "shard tokens-0003 block 17 is corrupt",
            ERROR.format("ValueError: shard a/b.bin block 0 is corrupt: xxh3 differs"),
            "gangline_worker.data.errors.DataShardError: data: shard a.bin is corrupt: too short",
        )
    ),
    *(
        ("not finite", words(text), FailureCause.PROCESS, FailureClass.NAN)
        for text in (
            ERROR.format(
                "gangline_worker.loss_watch.NotFiniteError: the loss or the gradient was not "
                "finite for 4 steps in a row, the last 90; training.on_nan.skip is 3"
            ),
            ERROR.format("gangline_worker.loss_watch.LossSpikeError: the loss was above 2.1"),
            ERROR.format(
                "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output."
            ),
            ERROR.format("ValueError: The loss returned in `training_step` is nan or inf."),
        )
    ),
    *(
        (
            "Xid of a program",
            ended(exit_code=1, message=f"NVRM: Xid (PCI:0000:03:00): {code}, pid=1"),
            FailureCause.PROCESS,
            FailureClass.PROCESS,
        )
        for code in (8, 13, 31, 32, 43, 45, 68, 69)
    ),
    ("contained ECC error", words("Xid 94: contained"), INFRASTRUCTURE, FailureClass.DEVICE),
    *(
        ("bad device", words(f"Xid: {code}, pid=1"), INFRASTRUCTURE, FailureClass.DEVICE)
        for code in (48, 62, 63, 64, 74, 79, 92, 95, 119, 120, 140, 999)
    ),
    *(
        ("bad device", words(text), INFRASTRUCTURE, FailureClass.DEVICE)
        for text in (
            "RuntimeError: CUDA error: uncorrectable ECC error encountered",
            "RuntimeError: No CUDA GPUs: no CUDA-capable device is detected",
            "GPU has fallen off the bus",
            "CUDA error: uncorrectable NVLink error detected during the execution",
            "DistBackendError: NCCL error: Cuda failure 220 'uncorrectable NVLink error detected'",
            "CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
            "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
            "RuntimeError: CUDA error: unknown error",
            NCCL_ERROR.format("unhandled cuda error", "Cuda failure 999 'unknown error'"),
            NCCL_ERROR.format("unhandled cuda error", "Cuda failure 'unknown error'"),
            "CUDA error: all CUDA-capable devices are busy or unavailable",
            "Failed to initialize NVML: Driver/library version mismatch",
            "RuntimeError: No CUDA GPUs are available",
            "Error 803: system has unsupported display driver / cuda driver combination",
        )
    ),
    (
        "device assert",
        words("RuntimeError: CUDA error: device-side assert triggered"),
        USER,
        FailureClass.USER_ERROR,
    ),
    (
        "bad access on a GPU",
        ended(
            signal=6,
            message="[Rank 3] NCCL watchdog: CUDA error: an illegal memory access was encountered",
        ),
        FailureCause.PROCESS,
        FailureClass.PROCESS,
    ),
    *(
        ("bad access on a GPU", words(text), FailureCause.PROCESS, FailureClass.PROCESS)
        for text in (
            "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`",
            "RuntimeError: CUDA error: the launch timed out and was terminated",
            "torch.AcceleratorError: CUDA error: invalid program counter",
            NCCL_ERROR.format("unhandled cuda error", "Cuda failure 718 'invalid program counter'"),
            "CUDA error: operation not supported on global/shared address space",
            "RuntimeError: cuFFT error: CUFFT_INTERNAL_ERROR",
            "torch._C._LinAlgError: cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR",
        )
    ),
    *(
        ("bad disk", words(text), INFRASTRUCTURE, FailureClass.STORAGE)
        for text in (
            "OSError: [Errno 28] No space left on device",
            "OSError: [Errno 5] Input/output error",
            "OSError: [Errno 116] Stale file handle",
            "OSError: [Errno 30] Read-only file system: '/scratch'",
            "OSError: [Errno 108] Cannot send after transport endpoint shutdown: '/lustre/x'",
            "OSError: [Errno 121] Remote I/O error",
            "OSError: [Errno 117] Structure needs cleaning: '/scratch/x'",
            "OSError: [Errno 112] Host is down: '/nfs/x'",
        )
    ),
    *(
        ("data loader's worker", words(text), FailureCause.PROCESS, FailureClass.PROCESS)
        for text in (
            "RuntimeError: DataLoader worker (pid 9) is killed by signal: Killed. ",
            "RuntimeError: DataLoader worker (pid(s) 9, 10) exited unexpectedly",
        )
    ),
    *(
        ("bad link", words(text), INFRASTRUCTURE, FailureClass.NETWORK)
        for text in (
            "NCCL WARN NET/IB : local work queue catastrophic error",
            "OSError: [Errno 113] No route to host",
            "[3] NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory\nx",
        )
    ),
    (
        "aborted after a peer's death",
        ended(signal=6, message="terminate called: Connection closed by peer"),
        INFRASTRUCTURE,
        FailureClass.NETWORK,
    ),
    ("signal", ended(exit_code=137), FailureCause.PROCESS, FailureClass.PROCESS),
    ("signal", ended(signal=11), FailureCause.PROCESS, FailureClass.PROCESS),
    ("signal", words(TORCHRUN), FailureCause.PROCESS, FailureClass.PROCESS),
    ("exit code", words(TORCHRUN.replace("Signal 11", "Signal 0")), USER, FailureClass.USER_ERROR),
    (
        "Python: program",
        words(ERROR.format("ValueError: x") + TORCHRUN.replace("Root Cause", "Other")),
        USER,
        FailureClass.USER_ERROR,
    ),
    *(
        ("lost its peers", words(text), INFRASTRUCTURE, FailureClass.NETWORK)
        for text in (
            "RuntimeError: Timed out waiting 1800000ms for recv operation to complete",
            "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)",
            "RuntimeError: Timed out initializing process group in store based barrier on rank: 0",
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp",
            NCCL_ERROR.format("remote process exited or there was a network error", REMOTE),
        )
    ),
    ("storage, exit code 65", ended(exit_code=65), INFRASTRUCTURE, FailureClass.STORAGE),
    ("storage, exit code 74", ended(exit_code=74), INFRASTRUCTURE, FailureClass.STORAGE),
    ("temporary failure", ended(exit_code=75), INFRASTRUCTURE, FailureClass.NETWORK),
    *(
        ("temporary failure", words(ERROR.format(text)), INFRASTRUCTURE, FailureClass.NETWORK)
        for text in (
            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='hub')",
            "botocore.exceptions.EndpointConnectionError: Could not connect",
            "TimeoutError: timed out",
            "httpx.ConnectError: [Errno -3] Temporary failure in name resolution",
            "urllib3.exceptions.ProtocolError: ('Connection aborted.', RemoteDisconnected('x'))",
            "requests.exceptions.ChunkedEncodingError: ('Connection broken: IncompleteRead(1)')",
            "botocore.exceptions.ConnectionClosedError: Connection was closed before we received",
            "botocore.exceptions.ResponseStreamingError: An error occurred while reading",
            "aiohttp.client_exceptions.ServerDisconnectedError: Server disconnected",
            "google.api_core.exceptions.ServiceUnavailable: 503 GET https://storage: x",
            f"hub.LocalEntryNotFoundError: {NOT_LOCATED}",
            "OSError: We couldn't connect to 'https://huggingface.co' to load this file",
            "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling GetObject",
            "botocore.exceptions.ClientError: An error occurred (503) when calling HeadObject",
            "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: x",
        )
    ),
    *(
        (f"Python: {name}", words(ERROR.format(text)), USER, FailureClass.USER_ERROR)
        for name, text in (
            ("import", "ModuleNotFoundError: No module named 'wandb'"),
            ("import", "ImportError: cannot import name 'a' from 'b'"),
            ("syntax", "SyntaxError: invalid syntax"),
            ("syntax", "IndentationError: unexpected indent"),
            ("file", "FileNotFoundError: [Errno 2] No such file or directory: 'a'"),
            ("file", "PermissionError: [Errno 13] Permission denied: '/data'"),
            ("program", "ValueError: batch size 0"),
            ("program", "KeyError: 'lr'"),
            ("program", "AssertionError"),
            ("program", "pydantic_core._pydantic_core.ValidationError: 1 validation error"),
        )
    ),
    *(
        (f"command, exit code {code}", ended(exit_code=code), USER, FailureClass.USER_ERROR)
        for code in (2, 126, 127)
    ),
    ("exit code", ended(exit_code=1), USER, FailureClass.USER_ERROR),
    *(
        ("exit code", words(ERROR.format(text)), USER, FailureClass.USER_ERROR)
        for text in (
            "RuntimeError: x",
            "botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling Get",
            "requests.exceptions.HTTPError: 404 Client Error: Not Found for url: x",
        )
    ),
    ("no status", ended(), INFRASTRUCTURE, FailureClass.UNKNOWN),
]
XIDS = {
    r"a reset of the GPU or a reboot for Xid": LOST_XIDS,
    r"\| Xid of a program \| Xid": PROGRAM_XIDS,
    r"\| contained ECC error \| Xid": CONTAINED_XIDS,
}
"""Errors by number, and what stands before them in the docs."""
ELSEWHERE = {
    "lease lost", "damaged checkpoint", "launch failed", "GPU memory of others", "bad device",
    "bad disk", "bad link", "storage, exit code 65", "storage, exit code 74",
}  # fmt: skip


@pytest.mark.parametrize(("name", "exited", "cause", "kind"), ROWS)
def test_the_first_row_that_fits_decides(
    name: str, exited: WorkerExited, cause: FailureCause, kind: FailureClass
) -> None:
    rule = classify(exited)
    assert rule is not None
    assert (rule.name, rule.cause, rule.failure_class) == (name, cause, kind)
    assert rule.avoid_node == (name in ELSEWHERE)


def test_every_row_has_a_case_and_a_line_in_the_docs() -> None:
    assert {name for name, *_ in ROWS} == {rule.name for rule in TABLE}
    page = (ROOT / "docs" / "concepts" / "faults.md").read_text(encoding="utf-8")
    rows = [line.split(" | ")[0].removeprefix("| ") for line in page.splitlines()]
    assert [rule.name for rule in TABLE] == [row for row in rows if row in {r.name for r in TABLE}]


def test_the_docs_have_the_numbers_of_the_driver() -> None:
    page = (ROOT / "docs" / "concepts" / "faults.md").read_text(encoding="utf-8")
    found = [re.search(rf"{before} ([\d,\s]+(?:and \d+)?)", page) for before in XIDS]
    numbers = [{int(each) for each in re.findall(r"\d+", one[1])} for one in found if one]
    assert numbers == [*XIDS.values()]


def test_every_class_has_a_runbook() -> None:
    pages = {page.stem for page in (ROOT / "docs" / "runbooks").glob("*.md")} - {"README"}
    assert pages == {kind.value for kind in FailureClass}


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("gangline_worker.loss_watch.NotFiniteError: not finite in step 5", "not finite"),
        ("TimeoutError: no answer", "temporary failure"),
        ("ModuleNotFoundError: No module named 'wandb'", "Python: import"),
    ],
)
def test_a_traceback_that_torch_marks_with_its_rank_is_read_all_the_same(
    text: str, row: str
) -> None:
    marked = "\n".join(f"[rank12]: {line}" for line in ERROR.format(text).splitlines())
    found = classify(words(marked))
    assert found is not None
    assert found.name == row
    assert describe(found, words(marked)).endswith(f": {text}")


def test_a_chain_of_errors_is_judged_by_its_last() -> None:
    chained = ERROR.format("KeyError: 'a'") + "\n\n" + ERROR.format("ImportError: b")
    rule = classify(words(chained))
    assert rule is not None
    assert rule.name == "Python: import"


def test_the_message_says_what_to_do_and_ends_with_the_ranks_last_line() -> None:
    exited = words(ERROR.format("ModuleNotFoundError: No module named 'wandb'"))
    rule = classify(exited)
    assert rule is not None
    assert describe(rule, exited) == (
        "rank 0 on n could not import what it needs: put it into the image or the workdir: "
        "ModuleNotFoundError: No module named 'wandb'"
    )


NOT_DESTROYED = (
    "[rank0]:[W1004 15:16:15.503072590 ProcessGroupNCCL.cpp:1479] Warning: WARNING: "
    "destroy_process_group() was not called before program exit, which can leak resources. "
    "For more info, please see https://pytorch.org/docs/stable/distributed.html#shutdown"
)
BARRIER = "[rank0]:[W1004 15:16:15.5 ProcessGroupNCCL.cpp:4718] using GPU 0 as device"


@pytest.mark.parametrize(
    "message",
    [
        ERROR + "\n" + NOT_DESTROYED,
        BARRIER + "\n" + ERROR,
        "NCCL version 2.27.5+cuda12.9\nn1:3:4 [0] NCCL INFO cudaDriverVersion 12080\n" + ERROR,
        "n1:3:4 [0] init.cc:9 NCCL WARN NET/Plugin: could not be loaded\n" + ERROR,
    ],
)
@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("ValueError: batch size 0", "Python: program"),
        ("torch.distributed.DistBackendError: remote process exited", "lost its peers"),
    ],
)
def test_what_torch_and_nccl_print_in_any_run_does_not_decide(
    message: str, text: str, row: str
) -> None:
    exited = words(message.format(text))
    rule = classify(exited)
    assert rule is not None
    assert rule.name == row
    assert describe(rule, exited).endswith(f": {text}")


def test_a_gang_without_gpus_that_finds_none_is_no_fault_of_its_node() -> None:
    rule = classify(words("RuntimeError: No CUDA GPUs are available"), gpus=False)
    assert rule is not None
    assert rule.name == "exit code"


def test_an_error_of_the_program_that_led_to_a_lost_connection_does_not_hide_it() -> None:
    lost = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]"
    rule = classify(words(ERROR.format("KeyError: 'a'") + "\n\n" + ERROR.format(lost)))
    assert rule is not None
    assert rule.name == "lost its peers"


def test_the_advice_that_torch_adds_to_errors_of_cuda_does_not_hide_the_error() -> None:
    error = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
    exited = words(
        ERROR.format(error) + "\nCUDA kernel errors might be asynchronously reported\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    )
    rule = classify(exited)
    assert rule is not None
    assert describe(rule, exited).endswith(f": {error}")


@pytest.mark.parametrize("reason", ["finished", "stopped", "fenced"])
def test_an_orderly_end_is_no_failure(reason: str) -> None:
    assert classify(ended(ExitReason(reason), exit_code=0)) is None


PATTERNS = {
    name: found for name, found in vars(last_words).items() if isinstance(found, re.Pattern)
}


def endless(parsed: Any) -> Iterator[tuple[Any, Any]]:
    """Neighbours in a pattern that both repeat without a bound."""
    parts = list(parsed)
    for (one, said), (other, also) in pairwise(parts):
        if one is other is sre.MAX_REPEAT and said[1] is also[1] is sre.MAXREPEAT:
            yield said, also
    for _, said in parts:
        for below in said if isinstance(said, tuple) else ():
            for inner in below if isinstance(below, list) else [below]:
                if isinstance(inner, sre.SubPattern):
                    yield from endless(inner)


@pytest.mark.parametrize("name", PATTERNS)
def test_no_last_words_take_a_pattern_long(name: str) -> None:
    """One that had two such neighbours took ten seconds for 4,096 characters."""
    assert not [*endless(sre.parse(PATTERNS[name].pattern))]
