"""The saves of ranks: each part is checked on the disk, uploaded and announced."""

from __future__ import annotations

from gangline_schemas.events.workers import NodeInfo
from gangline_schemas.rank_protocol import ShardReady

from . import announce
from .effects import CheckShard, Effect, Note, Publish, Upload
from .exits import report_held
from .gang import Gang, Rank
from .inputs import ShardChecked, Uploaded, UploadFailed
from .keys import Moment


def on_ready(gang: Gang, rank: Rank, ready: ShardReady) -> list[Effect]:
    """Check the part that a rank has saved; [] if it is on its way already."""
    if ready.step in rank.uploads:
        return []
    if refusal := _refusal(gang, rank, ready):
        return [Note("shard.refused", gang.key, refusal)]
    behind = gang.behind
    rank.uploads[ready.step] = ready
    check = CheckShard(rank.key, ready)
    return [check, *gang.send_control()] if gang.behind != behind else [check]


def on_checked(node: NodeInfo, gang: Gang, rank: Rank, item: ShardChecked) -> list[Effect]:
    """Upload a part that is as the rank said; announce the last part of the ranks here."""
    step = item.ready.step
    if gang.over or step not in rank.uploads:
        return []
    upload = Upload(rank.key, item.ready)
    if gang.note_on_disk(rank, step):
        return [announce.saved(node, gang, step), upload]
    return [upload]


def on_upload(
    node: NodeInfo, gang: Gang, rank: Rank, item: Uploaded | UploadFailed, at: Moment
) -> list[Effect]:
    """Announce what became of an upload; exits may have waited for it."""
    out: list[Effect] = []
    if isinstance(item, Uploaded):
        step = item.written.step
        if not gang.over and step in rank.uploads:
            identity = (*announce.identity(gang, rank), step)
            out.append(Publish(gang.key.job_id, item.written, identity))
            rank.saved = max(step, rank.saved or 0)
    else:
        step = item.step
        if not gang.over:
            out.append(announce.lost(node, gang, rank, step, item.message))
        out.append(Note("upload.failed", gang.key, f"step {step}: {item.message}"))
    behind = gang.behind
    rank.uploads.pop(step, None)
    out += gang.send_control() if gang.behind != behind else []
    return out + report_held(gang, at)


def _refusal(gang: Gang, rank: Rank, ready: ShardReady) -> str | None:
    """Why a rank's part is not taken; None if it is."""
    if ready.rank != rank.key.rank or ready.world_size != gang.allocation.world_size:
        return "it names another rank or world size"
    if rank.saved is not None and ready.step <= rank.saved:  # it may be committed by now
        return f"step {ready.step} of rank {ready.rank} comes after step {rank.saved}"
    return None
