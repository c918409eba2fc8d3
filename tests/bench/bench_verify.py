"""How fast the checkpoint service reads a save before it commits it, file by file and at once.

512 MiB in 32 files, in the S3 server of `gangline up --s3 local`, which shares the machine. They
are read right from it, and over a link on which each answer takes ten times as long, as with a far
store.
"""

from __future__ import annotations

import statistics
import time

from harness import Context, Result, scratch

from chaos.links import Link
from gangline.local.s3proxy import BUCKET, S3Proxy
from gangline_checkpoints.core.model import StepId, Verified, Verify
from gangline_checkpoints.service.executor import StoreExecutor
from gangline_schemas.checkpoint import TensorSlice
from gangline_storage.s3 import S3Store
from gangline_storage.s3_options import S3Credentials
from support.builders.checkpoints import JOB, PREFIX, write_part

RANKS, ROWS, COLUMNS = 32, 4096, 1024
AT_ONCE = 8
FAR = 10.0


def rows_of(rank: int) -> TensorSlice:
    """A rank's 16 MiB of one tensor."""
    return TensorSlice(
        name="weight",
        dtype="float32",
        global_shape=(RANKS * ROWS, COLUMNS),
        start=(rank * ROWS, 0),
        shape=(ROWS, COLUMNS),
        byte_offset=0,
        size_bytes=ROWS * COLUMNS * 4,
    )


def run(context: Context) -> list[Result]:
    """MB/s of both ways near and far, in turn."""
    with scratch() as folder, S3Proxy(folder) as server:
        link = Link(int(server.endpoint.rpartition(":")[2]))
        keys = S3Credentials(server.settings.access_key, server.settings.secret_key)
        near, far = (
            S3Store(BUCKET, "bench", endpoint=endpoint, credentials=keys)
            for endpoint in (server.endpoint, f"http://127.0.0.1:{link.port}")
        )
        link.slow(FAR)
        shards = tuple(
            write_part(near, rank, world_size=RANKS, tensors=(rows_of(rank),))
            for rank in range(RANKS)
        )
        effect = Verify(JOB, PREFIX, StepId(1, 20), RANKS, shards, tries=0)
        found: dict[tuple[S3Store, int], list[float]] = {}
        for _ in range(context.repeats(3)):
            for store in (near, far):
                for files in (1, AT_ONCE):
                    execute = StoreExecutor(store, files_at_once=files)
                    began_s = time.perf_counter()
                    outcome = execute("verify", effect)
                    assert isinstance(outcome, Verified), outcome
                    seconds = time.perf_counter() - began_s
                    found.setdefault((store, files), []).append(outcome.size_bytes / 1e6 / seconds)
        link.close()
    results = []
    for name, store in (("near", near), ("far", far)):
        alone, at_once = found[store, 1], found[store, AT_ONCE]
        gains = [fast / slow for fast, slow in zip(at_once, alone, strict=True)]
        note = f"one file at a time {statistics.median(alone):.0f} MB/s"
        results += [
            context.median(f"verify_{name}_mb_per_s", at_once, "MB/s", note=note),
            context.median(f"verify_{name}_gain", gains, "x"),
        ]
    return results
