"""`save` and `restore` for users' own training scripts."""

from __future__ import annotations

import atexit
import operator
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, SupportsFloat

import torch
import torch.distributed as dist
from pydantic import JsonValue
from torch.distributed.tensor import DTensor

from gangline_schemas.events.heartbeats import RankActivity
from gangline_schemas.limits import METRICS_PER_STEP
from gangline_schemas.rank_protocol import ShardReady
from gangline_worker.checkpoint.commit import commit_local, keep_latest
from gangline_worker.checkpoint.files import CorruptCheckpoint
from gangline_worker.checkpoint.loader import Checkpoint, WrongCheckpoint
from gangline_worker.checkpoint.local import PER_RANK, holdings, own_prefix
from gangline_worker.checkpoint.saver import AsyncSaver, SaverIdentity
from gangline_worker.checkpoint.tree import empty_ones, flatten, in_place, rebuild, tensor_names
from gangline_worker.columns import figure, is_metric_name
from gangline_worker.gang_store import from_rank_0
from gangline_worker.reporting import SOCKET_ENV, doing, flush, reporter

DIRECTORY_ENV = "GANGLINE_CHECKPOINT_DIR"
RESUME_ENV = "GANGLINE_RESUME_FROM"
FULL_EVERY_ENV = "GANGLINE_CHECKPOINT_FULL_EVERY"
KEPT_WITHOUT_AGENT = 2


@dataclass(frozen=True)
class Restored:
    """A saved state: `state` as it was given to `save`, `per_rank` as this rank gave it."""

    step: int
    state: Any
    per_rank: Any = None


def identity(directory: Path) -> SaverIdentity:
    """The identity of this rank, from its environment. All ranks must call it together.

    Outside of the platform attempts are not counted, so rank 0 takes the next that is free: files
    of an earlier launch must never complete a checkpoint of this one.
    """
    named = os.environ.get("GANGLINE_ATTEMPT")
    rank, world_size = _place()
    return SaverIdentity(
        directory=directory,
        job_id=os.environ.get("GANGLINE_JOB_ID", "local"),
        attempt=int(named) if named else _free_attempt(directory),
        rank=rank,
        world_size=world_size,
        full_every=int(os.environ.get(FULL_EVERY_ENV, "1")),
    )


def _free_attempt(directory: Path) -> int:
    names = (path.name.removeprefix("attempt-") for path in directory.glob("attempt-*"))
    used = [int(name) for name in names if name.isdecimal()]
    attempt = max(used, default=0) + 1
    if dist.is_available() and dist.is_initialized():
        return from_rank_0(attempt)  # training's groups may be in use by another thread
    return attempt


def announcer(directory: Path) -> Callable[[ShardReady], None]:
    """Where finished shards are reported: the agent, or a local commit by the last rank."""

    def announce(message: ShardReady) -> None:
        if reporter().connected:
            reporter().shard_ready(message)
        elif os.environ.get(SOCKET_ENV):  # it owns the folder: no commit, and nothing is deleted
            raise OSError("the agent that uploads it is gone")
        elif commit_local((directory / message.shard.key).parent, message.world_size):
            keep_latest(directory, KEPT_WITHOUT_AGENT)

    return announce


def another_copy(damage: CorruptCheckpoint) -> bool:
    """Let the agent, if there is one, replace a damaged file by the store's; True when it did."""
    folder, name = damage.path.parent, damage.path.name
    if folder != Path(os.environ.get(RESUME_ENV, "")):  # of a step that this one refers to
        name = f"{folder.name}/{name}"
    return reporter().another_copy(name, damage.reason)


def committed_step() -> int | None:
    """The newest committed step of this attempt, if an agent tells us: saves may refer to it."""
    return reporter().committed_step


_savers: dict[Path, AsyncSaver] = {}
_saving = threading.RLock()  # a handler of a signal may save in the midst of a save
_forked = False


def _after_fork_in_child() -> None:
    """A child has none of the savers' threads, and its parent saves as this rank."""
    global _forked, _saving  # noqa: PLW0603
    _forked = _forked or bool(_savers)
    _saving = threading.RLock()
    _savers.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)


def prepare(state: Mapping[str, Any], per_rank: Mapping[str, Any] | None = None) -> None:
    """Get ready to `save` states like this one; every rank may call it before its first step.

    Allocates and touches the memory that saves are copied to: without it the first `save` does, and
    takes seconds for each 10 GB. Outside of the platform it only looks at the state.

    Raises:
        TypeError: `save` could not take the state; the message names where.
    """
    tensors, _ = _taken_apart(state, per_rank)
    directory = os.environ.get(DIRECTORY_ENV)
    if directory is None or _forked:
        holdings(tensors, *_place())
        return
    with _saving, _checkpointing():
        saver = _saver(Path(directory))
        saver.prepare(tensors)
        saver.release_tensors()


def save(
    state: Mapping[str, Any],
    step: int,
    metrics: Mapping[str, float] | None = None,
    *,
    per_rank: Mapping[str, Any] | None = None,
) -> bool:
    """Save a nested state; every rank must call it at one step.

    Returns as soon as the tensors are copied; files are written in the background, and one save
    waits for the one before. Sharded tensors (DTensor) are saved as shards; plain tensors, arrays
    and bytes every rank must hold alike: each writes a part, and small ones (64 KiB) whole. If
    ranks hold different values, nothing is committed, and the reason names the tensor and the
    ranks. A rank's own values (a ZeRO partition, random numbers) go into `per_rank`: another state,
    without DTensors, that only as many ranks can restore.

    Steps grow within a run; one that was saved is not written again. As in `report`, metrics that
    are not finite are left out. A checkpoint holds the first 1,000 metrics; if there are more, a
    warning says so. Gives False, with a warning, when:
    - the environment names no GANGLINE_CHECKPOINT_DIR,
    - this process was forked from one that saved before,
    - the last save failed (a full disk, a step that did not grow),
    - or the last loss or gradient that this rank reported was not finite.

    Raises:
        TypeError: the state holds what `checkpoint.tree.flatten` does not take, the step is not an
            integer, or a metric no number; the message names where.
    """
    named = os.environ.get(DIRECTORY_ENV)
    if not named:
        warnings.warn(f"not saved: {DIRECTORY_ENV} is not set", stacklevel=2)
        return False
    if _forked:
        warnings.warn(
            f"step {step} is not saved: this process was forked from the rank's; save there",
            stacklevel=2,
        )
        return False
    if reporter().not_finite:  # one rank is enough: without its part nothing is committed
        warnings.warn(f"step {step} is not saved: its loss is not finite", stacklevel=2)
        return False
    step, figures = operator.index(step), _figures(metrics or {})
    if len(figures) > METRICS_PER_STEP:
        warnings.warn(
            f"step {step}: the checkpoint holds the first {METRICS_PER_STEP:,} of its "
            f"{len(figures):,} metrics; `gangline.report` takes all of them",
            stacklevel=2,
        )
        figures = dict(islice(figures.items(), METRICS_PER_STEP))
    with _saving, _checkpointing():
        tensors, kept = _taken_apart(state, per_rank)
        saver = _saver(Path(named))
        saver.wait()
        failed = [result for result in saver.results() if result.error]
        for result in failed:
            warnings.warn(f"the save of step {result.step} failed: {result.error}", stacklevel=2)
        saver.begin(step, tensors, kept, figures)
        reporter().save_begins()
        saver.release_tensors()
    return not failed


def _place() -> tuple[int, int]:
    """This rank and how many there are: as the environment says, else as ranks have met."""
    if "RANK" not in os.environ and dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _saver(directory: Path) -> AsyncSaver:
    saver = _savers.get(directory)
    if saver is None:
        saver = _savers[directory] = AsyncSaver(
            identity(directory), announcer(directory), committed_step
        )
        atexit.register(_finish, saver)
    return saver


def _taken_apart(
    state: Mapping[str, Any], per_rank: Mapping[str, Any] | None
) -> tuple[dict[str, torch.Tensor], dict[str, JsonValue]]:
    """All tensors by name, and what a manifest keeps of the rest. Raises TypeError."""
    tensors, skeleton = _shared(state)
    kept: dict[str, JsonValue] = {"skeleton": skeleton}
    if per_rank is not None:
        own, kept["per_rank"] = flatten(per_rank, own_prefix(_place()[0]))
        for name, tensor in own.items():
            if isinstance(tensor, DTensor):
                raise TypeError(f"{name}: a DTensor is no rank's own; save it in the state")
        tensors |= own
    return tensors, kept


def _shared(state: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], JsonValue]:
    """The state that is of all ranks, as `flatten` gives it. Raises TypeError."""
    tensors, skeleton = flatten(state)
    taken = next((name for name in tensors if name.startswith(f"{PER_RANK}.")), None)
    if taken is not None:
        raise TypeError(f"{taken}: {PER_RANK} is the name of the per_rank state; take another key")
    return tensors, skeleton


@contextmanager
def _checkpointing() -> Iterator[None]:
    """Report the activity meanwhile, so that it does not look like a hang; not if none is known."""
    before = reporter().activity
    if before is None or before is RankActivity.CHECKPOINTING:
        yield
        return
    with doing(RankActivity.CHECKPOINTING.value):
        yield


def _figures(metrics: Mapping[str, SupportsFloat]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in metrics.items():
        try:
            found[name] = float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise TypeError(f"metrics.{name}: cannot save {value!r:.80} as a number") from error
    return {
        name: value
        for name, value in found.items()
        if figure(value) is not None and is_metric_name(name)
    }


def _finish(saver: AsyncSaver) -> None:
    if saver not in _savers.values():  # in a forked child
        return
    saver.wait()
    for result in saver.results():
        if result.error:
            warnings.warn(f"the save of step {result.step} failed: {result.error}", stacklevel=1)
    flush()


def restore(into: Mapping[str, Any] | None = None, *, per_rank: bool = True) -> Restored | None:
    """The checkpoint to resume from, or None on a first start. Every byte read is verified.

    With `into`, a state like the one that was saved, its tensors are filled in place (sharded
    ones by their shard, at any world size) and are those of the result. Without it, whole tensors
    are made in CPU memory. A first start checks `into` too.

    Raises:
        TypeError: `save` could not take `into`; the message names where.
        CorruptCheckpoint: a file is not what was committed, and no other copy is; it is named.
        WrongCheckpoint: `into` names a tensor that the checkpoint does not hold alike; or another
            number of ranks saved a `per_rank` state, and `per_rank=False` does not leave it out.
    """
    found, form = _shared(into or {})
    folder = os.environ.get(RESUME_ENV)
    if not folder:
        return None
    rank, world_size = _place()
    checkpoint = Checkpoint(Path(folder), another_copy, rank=rank, world_size=world_size)
    kept = checkpoint.own_manifest.state
    skeleton, own = kept.get("skeleton"), kept.get("per_rank") if per_rank else None
    saved_by = checkpoint.record.world_size
    if own is not None and saved_by != world_size:
        raise WrongCheckpoint(
            f"{folder} was saved by {saved_by} ranks, each with a per_rank state of its own, and "
            f"{world_size} ranks start from it: start {saved_by} ranks, or leave that state out by "
            "restore(per_rank=False)"
        )
    tensors: dict[str, torch.Tensor] = {}
    if into is not None:
        tensors = {name: found[name] for name in in_place(form)}
        _check_empty(checkpoint, tensors.keys() & empty_ones(form).keys(), form, skeleton)
        checkpoint.fill(holdings(tensors, rank, world_size))
    others = (tensor_names(skeleton) - tensors.keys()) | tensor_names(own)
    missing = checkpoint.read_whole(checkpoint.tensors(others).values())
    state = rebuild(skeleton, {**missing, **tensors})
    return Restored(checkpoint.step, state, None if own is None else rebuild(own, missing))


def _check_empty(
    checkpoint: Checkpoint, names: Iterable[str], form: JsonValue, skeleton: JsonValue
) -> None:
    """Raises WrongCheckpoint unless these, empty here, are alike in the checkpoint."""
    here, there = empty_ones(form), empty_ones(skeleton)
    for name in sorted(names):
        if here[name] == there.get(name):
            continue
        held = checkpoint.tensors([name]).get(name)
        as_saved = "not" if held is None else f"{held.dtype} {held.global_shape}"
        raise WrongCheckpoint(
            f"{name} is empty here and {there.get(name, as_saved)} in the checkpoint; give a "
            "tensor like the one that was saved, or leave it out of `into` to have it made"
        )
