"""Executes effects: verifies, reads again and deletes checkpoints in the object store.

Everything here may be done twice, after a crash. Reading changes nothing. The commit record is put
only if absent, and compared if present. Deleting a missing object is not an error.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial

import structlog
from pydantic import ValidationError

from gangline_checkpoints.core.model import (
    Away,
    Corrupt,
    Delete,
    Effect,
    Found,
    Outcome,
    Refused,
    Removed,
    Scrub,
    Scrubbed,
    StepId,
    Survey,
    Verified,
    Verify,
    merged_metrics,
)
from gangline_checkpoints.core.policy.agreement import coverage_problem, manifest_problem
from gangline_checkpoints.core.policy.chunks import own_chunks, reference_problem
from gangline_checkpoints.core.policy.pieces import Piece, Pieces
from gangline_checkpoints.service.known_chunks import KnownChunks
from gangline_checkpoints.service.own_bytes import OwnBytes
from gangline_schemas.checkpoint import (
    MAX_MANIFEST_BYTES,
    MAX_MANIFESTS_BYTES,
    Alike,
    Chunk,
    CommitRecord,
    RankManifest,
    checkpoint_prefix,
    commit_key,
    manifest_name,
    shard_name,
    step_of_key,
    team_of,
)
from gangline_schemas.events.workers import CheckpointShardWritten, ObjectDigest
from gangline_storage import AlreadyExists, Digest, InvalidKey, NotFound, ObjectStore, StoreError
from gangline_storage.pace import Pace

log = structlog.get_logger(__name__)

_NAMES = (manifest_name, shard_name)
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
MOST_FOUND = 500
"""Checkpoints that one survey names: a job retains far fewer."""
_LARGE_BYTES = 64 * 1024 * 1024
"""Limit of manifests in memory; checkpoints with more take turns."""


class _Mismatch(Exception):
    """An object is not what its rank wrote."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.outcome = Corrupt(key, reason)


class StoreExecutor:
    """Executes the effects of `CheckpointDecider`; safe to call from several threads.

    The store itself waits for a server that is away, bounded; then the outcome is `Away`, and a
    later try pauses before it begins, so that a long outage writes few events. A store that refuses
    access or cannot read a file gives `Away` too: an operator fixes it, and other jobs' checkpoints
    do not wait for that. Files of one save are read in parallel, as one stream of a store gives
    little. Scrubbing reads at `pace`, one file after the other.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        pause: Callable[[float], object] = time.sleep,
        pace: Pace | None = None,
        files_at_once: int = 8,
    ) -> None:
        self._store = store
        self._files_at_once = files_at_once
        self._clock = clock
        self._pause = pause
        self._pace = pace or Pace()
        self._scrubs = threading.Lock()
        self._large = threading.Lock()
        self._known = KnownChunks()

    def __call__(self, key: str, effect: object) -> Outcome:
        """The outcome of one effect.

        Raises StoreError for a survey alone: no event says that it failed, so the threads that run
        effects try it again until its job is put away.
        """
        if not isinstance(effect, Verify | Delete | Scrub | Survey):
            raise TypeError(f"{key}: {type(effect).__name__} is not an effect of this service")
        tries = 0 if isinstance(effect, Scrub | Survey) else effect.tries
        if tries:
            self._pause(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * tries))
        try:
            outcome = self._execute(effect)
        except InvalidKey as error:
            # A checkpoint.path that no store can hold: nothing was ever written there.
            outcome = _of_no_key(effect, str(error)[:500])
        except StoreError as error:
            if isinstance(effect, Survey):
                raise
            log.warning("store not used", key=key, reason=str(error))
            outcome = Away(str(error)[:500])
        log.info("effect executed", key=key, outcome=type(outcome).__name__)
        return outcome

    def _execute(self, effect: Effect) -> Outcome:
        match effect:
            case Verify():
                return self._verify(effect)
            case Delete():
                return self._delete(effect)
            case Survey():
                return self._survey(effect)
            case Scrub():
                with self._scrubs:
                    return self._scrub(effect)

    def _verify(self, effect: Verify) -> Outcome:
        began = time.monotonic()
        try:
            with ThreadPoolExecutor(self._files_at_once, thread_name_prefix="verify") as readers:
                manifests = self._agreeing(effect, readers)
                if isinstance(manifests, str):
                    return Refused(manifests)
                deque(readers.map(self._check_bytes, effect.shards, manifests), maxlen=0)
        except _Mismatch as error:
            return error.outcome
        try:
            referred = self._referred(effect, manifests)
        except _Mismatch as error:
            return Refused(f"what it refers to is not as it was committed: {error}")
        refused = self._put_record(effect, referred)
        if refused is not None:
            return refused
        for shard, manifest in zip(effect.shards, manifests, strict=True):
            if manifest.chunks is not None:
                self._known.add(shard.manifest, own_chunks(manifest))
        objects = [item for shard in effect.shards for item in (shard.manifest, *shard.shards)]
        size_bytes = sum(item.size_bytes for item in objects)
        elsewhere = sum(item.whole_bytes - item.shard.size_bytes for item in manifests)
        return Verified(
            size_bytes=size_bytes,
            objects=len(objects) + 1,
            verify_s=round(time.monotonic() - began, 6),
            whole_bytes=size_bytes + elsewhere if referred else None,
            refers=tuple(sorted({step for item in manifests for step in item.refers})),
        )

    def _agreeing(self, effect: Verify, readers: ThreadPoolExecutor) -> list[RankManifest] | str:
        """The manifests without their slices, which are whole together; or what is wrong.

        Memory: about the manifests' bytes. Of checkpoints with many of them one at a time is read.
        """
        size_bytes = sum(shard.manifest.size_bytes for shard in effect.shards)
        if size_bytes > MAX_MANIFESTS_BYTES:
            return f"its manifests hold {size_bytes} bytes, above {MAX_MANIFESTS_BYTES}"
        with self._large if size_bytes > _LARGE_BYTES else contextlib.nullcontext():
            pieces, alike = Pieces(), Alike()
            found = [*readers.map(partial(self._manifest, pieces, alike), effect.shards)]
            problem = alike.problem() or coverage_problem([slices for _, slices in found])
        return problem or [manifest for manifest, _ in found]

    def _referred(
        self, effect: Verify, manifests: Sequence[RankManifest]
    ) -> tuple[ObjectDigest, ...]:
        """The earlier files in which chunks lie, by rank and step.

        Raises _Mismatch when one was not committed with these chunks in it.
        """
        attempt = effect.id.attempt
        records: dict[int, CommitRecord] = {}
        found = []
        for manifest in manifests:
            there: set[Chunk] = set()
            for step in manifest.refers:
                if step not in records:
                    place = (effect.job_id, effect.prefix, StepId(attempt, step))
                    records[step] = self._record(*place, effect.world_size)
                digest = records[step].manifests[manifest.rank]
                there.update(self._chunks_of(digest))
                found.append(records[step].shards[manifest.rank])
            problem = reference_problem(manifest, there)
            if problem is not None:
                raise _Mismatch(effect.shards[manifest.rank].manifest.key, problem)
        return tuple(found)

    def _chunks_of(self, manifest: ObjectDigest) -> tuple[Chunk, ...]:
        """The chunks that were verified when this manifest was."""
        known = self._known.get(manifest)
        if known is None:
            known = own_chunks(self._decoded(manifest))
            self._known.add(manifest, known)
        return known

    def _manifest(
        self, pieces: Pieces, alike: Alike, written: CheckpointShardWritten
    ) -> tuple[RankManifest, tuple[Piece, ...]]:
        digest = written.manifest
        manifest = self._decoded(digest)
        problem = manifest_problem(manifest, written)
        if problem is not None:
            raise _Mismatch(digest.key, problem)
        alike.add(manifest)
        left_out: dict[str, object] = {"tensors": (), "state": {}, "metrics": {}, "alike": {}}
        slim = manifest.model_copy(update=left_out)
        return slim, pieces.of(manifest.tensors)

    def _decoded(self, digest: ObjectDigest) -> RankManifest:
        if digest.size_bytes > MAX_MANIFEST_BYTES:
            raise _Mismatch(digest.key, f"is above {MAX_MANIFEST_BYTES} bytes, too large to read")
        raw = b"".join(self._checked(digest))
        try:
            return RankManifest.decode(raw)
        except ValidationError as error:
            fields = ", ".join(
                sorted({str(item["loc"][0]) for item in error.errors() if item["loc"]})
            )
            raise _Mismatch(digest.key, f"is not a manifest (fields: {fields})") from None

    def _check_bytes(self, written: CheckpointShardWritten, manifest: RankManifest) -> None:
        own = OwnBytes(manifest)
        for data in self._checked(written.shards[0]):
            own.feed(data)
        if own.problem is not None:
            raise _Mismatch(written.manifest.key, own.problem)

    def _checked(self, digest: ObjectDigest) -> Iterator[bytes]:
        """The bytes in chunks. Raises _Mismatch once they are known to be wrong."""
        seen = Digest()
        try:
            for chunk in self._store.stream(digest.key):
                seen.update(chunk)
                if seen.size_bytes > digest.size_bytes:
                    raise _Mismatch(digest.key, f"holds more than {digest.size_bytes} bytes")
                yield chunk
        except NotFound:
            raise _Mismatch(digest.key, "is missing") from None
        if seen.size_bytes != digest.size_bytes:
            reason = f"holds {seen.size_bytes} of {digest.size_bytes} bytes"
            raise _Mismatch(digest.key, reason)
        if seen.hexdigest() != digest.xxh3:
            raise _Mismatch(digest.key, "holds other bytes than were written (xxh3-128 differs)")

    def _put_record(self, effect: Verify, referred: tuple[ObjectDigest, ...]) -> Refused | None:
        record = commit_record(effect, self._clock(), referred)
        key = commit_key(effect.prefix, effect.id.attempt, effect.id.step)
        try:
            self._store.put(key, record.encode(), if_absent=True)
        except AlreadyExists:
            # Ours, from before a crash; or of a rank or user that must not write there.
            try:
                present = CommitRecord.decode(self._store.get(key))
            except (ValidationError, NotFound):
                return Refused("another commit record, which cannot be read, is in its place")
            if present.model_copy(update={"committed_at": record.committed_at}) != record:
                return Refused("another commit record, of other content, is in its place")
        return None

    def _scrub(self, effect: Scrub) -> Outcome:
        began, size_bytes = time.monotonic(), 0
        self._pace.begin()
        try:
            record = self._record(effect.job_id, effect.prefix, effect.id, effect.world_size)
            for item in (*record.manifests, *record.shards):
                try:
                    self._read_slowly(item)
                except _Mismatch:  # the way here may have been at fault: look again
                    self._read_slowly(item)
                size_bytes += item.size_bytes
        except _Mismatch as error:
            if next(iter(self._store.list()), None) is None:
                raise StoreError("the store is empty: is it the right one, and mounted?") from None
            return error.outcome
        return Scrubbed(size_bytes, round(time.monotonic() - began, 6))

    def _record(self, job_id: str, prefix: str, step_id: StepId, world_size: int) -> CommitRecord:
        """A commit record that was put. Raises _Mismatch when it is not the one we put."""
        key = commit_key(prefix, *step_id)
        folder = checkpoint_prefix(prefix, *step_id)
        try:
            record = CommitRecord.decode(self._store.get(key))
        except NotFound:
            raise _Mismatch(key, "is missing") from None
        except ValidationError:
            raise _Mismatch(key, "cannot be read") from None
        names = [shape(rank) for shape in _NAMES for rank in range(world_size)]
        found = (*record.manifests, *record.shards)
        says = (record.job_id, record.attempt, record.step, [item.key for item in found])
        if says != (job_id, *step_id, [f"{folder}/{name}" for name in names]):
            raise _Mismatch(key, "is of another checkpoint")
        return record

    def _read_slowly(self, digest: ObjectDigest) -> None:
        for chunk in self._checked(digest):
            self._pace.spend(len(chunk))

    def _survey(self, effect: Survey) -> Found:
        """Up to `MOST_FOUND` checkpoints. Cost: a listing of the job's objects."""
        found: dict[StepId, None] = {}
        for info in self._store.list(f"{effect.prefix}/"):
            place = step_of_key(effect.prefix, info.key)
            if place is not None:
                found[StepId(*place)] = None
            if len(found) > MOST_FOUND:
                break
        return Found(tuple(sorted(found)[:MOST_FOUND]))

    def _delete(self, effect: Delete) -> Removed:
        attempt, step = effect.id
        # First the record by which a half-deleted checkpoint would look whole.
        self._store.delete(commit_key(effect.prefix, attempt, step))
        folder = checkpoint_prefix(effect.prefix, attempt, step)
        return Removed(self._store.delete_prefix(f"{folder}/"))


def _of_no_key(effect: Effect, reason: str) -> Outcome:
    if isinstance(effect, Verify):
        return Refused(reason)
    return Found(()) if isinstance(effect, Survey) else Removed(0)


def share_of(effect: object) -> str:
    """The team of an effect; "" for scrubbing, which belongs to no team."""
    if isinstance(effect, Verify | Delete | Survey):
        return team_of(effect.prefix)
    return ""


def commit_record(
    effect: Verify, committed_at: datetime, referred: tuple[ObjectDigest, ...] = ()
) -> CommitRecord:
    """COMMIT.json of a verified checkpoint; always the same, except for its time."""
    return CommitRecord(
        format=2 if referred else 1,
        job_id=effect.job_id,
        attempt=effect.id.attempt,
        step=effect.id.step,
        world_size=effect.world_size,
        manifests=tuple(shard.manifest for shard in effect.shards),
        shards=tuple(shard.shards[0] for shard in effect.shards),
        referred=referred or None,
        committed_at=committed_at,
        metrics=merged_metrics(effect.shards),
    )
