"""Other copies for ranks that found a file of their checkpoint damaged, or not here, as they load.

The agent verified each file that it brought before the rank began; what changed since is fetched
again, from another node or the store, and the rank reads on. So is what was not brought, as a rank
mostly reads the files nearest to it alone. Where the store has no sound copy either, the rank
ends with its exit code for a damaged checkpoint, and the agent names the object with its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import structlog

from gangline_schemas.events.scheduling import GangAllocated
from gangline_schemas.rank_protocol import CopyDamaged, CopyReplaced
from gangline_storage.errors import StoreError
from gangline_worker.agent.decide.inputs import NoSoundCopy
from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.agent.isolation.files import Owner

from .fetch import OtherCopies
from .integrity import CheckpointDamaged, WrongPath
from .transfer import Checkpoints

log = structlog.get_logger(__name__)

_ASKED_LIMIT = 16  # a rank, beyond once for each file: one that asks on and on gets no more


class Repairs:
    """Answers `CopyDamaged`.

    `note(rank, text)` puts a line among the rank's own. `lost` gets each object that is damaged in
    the store as well.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        note: Callable[[RankKey, str], None],
        lost: Callable[[NoSoundCopy], None],
    ) -> None:
        self._checkpoints = checkpoints
        self._note = note
        self._lost = lost
        self._asked: Counter[RankKey] = Counter()

    def admit(self, rank: RankKey, allocation: GangAllocated) -> bool:
        """Whether the rank may ask once more; call it before `answer`, in one thread."""
        resume, of_each = allocation.resume, 1 + allocation.spec.checkpoint.full_every
        self._asked[rank] += 1
        return self._asked[rank] <= _ASKED_LIMIT + (resume.world_size if resume else 0) * of_each

    def forget(self, gang: GangKey) -> None:
        """The gang is over."""
        for rank in [rank for rank in self._asked if rank.gang == gang]:
            del self._asked[rank]

    def answer(
        self,
        rank: RankKey,
        allocation: GangAllocated,
        asked: CopyDamaged,
        owner: Owner | None = None,
        peers: OtherCopies | None = None,
    ) -> CopyReplaced:
        """Replace the file; the answer says whether that worked. Waits for a store that is away.

        `owner` is the rank's user, `peers` are the other nodes that may have a copy.
        """
        resume = allocation.resume
        if resume is None:
            return CopyReplaced(file=asked.file, sound=False)
        sound, was_here = False, True
        try:
            origin, was_here = self._checkpoints.refetch(
                resume, allocation.team, asked.file, owner, peers
            )
        except (CheckpointDamaged, WrongPath, OSError, StoreError) as error:
            outcome = f"no other copy was found: {error}"
            if isinstance(error, CheckpointDamaged) and error.key is not None:
                self._lost(NoSoundCopy(rank, error.key))
        else:
            sound, outcome = True, f"a sound copy of {origin} lies there now"
        found = log.bind(
            job=rank.gang.job_id, attempt=rank.gang.attempt, rank=rank.rank, file=asked.file
        )
        if was_here:
            found.warning("checkpoint.copy_damaged", damage=asked.reason, outcome=outcome)
            self._note(rank, f"{asked.file} of the checkpoint was damaged here; {outcome}")
        else:
            found.info("checkpoint.file_wanted", outcome=outcome)
        return CopyReplaced(file=asked.file, sound=sound)
