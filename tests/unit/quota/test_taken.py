"""The ids of jobs that saved are kept for ever, in little space."""

from __future__ import annotations

import json

from gangline_quota.core import taken
from gangline_quota.core.snapshot import codec, fingerprint
from gangline_quota.core.state import State
from gangline_quota.core.taken import Taken


def test_each_noted_id_is_known_and_no_other() -> None:
    kept: Taken = {}
    for number in range(20_000):
        taken.note(kept, f"job-{number}")

    assert all(taken.is_noted(kept, f"job-{number}") for number in range(20_000))
    assert not any(taken.is_noted(kept, f"other-{number}") for number in range(20_000))


def test_digests_that_meet_in_the_text_are_no_third_one() -> None:
    """The text of two digests holds that of others across their border."""
    kept: Taken = {}
    taken.note(kept, "a")
    ((first, rest),) = kept.items()

    kept[first] = f"{rest[5:]}{rest}{rest[:5]}"

    assert not taken.is_noted(kept, "a")


def test_an_id_takes_ten_bytes_and_a_second_time_none() -> None:
    kept: Taken = {}
    for _ in range(2):
        for number in range(20_000):
            taken.note(kept, "long-name-" * 10 + str(number))

    assert sum(len(text) for text in kept.values()) == 10 * 20_000
    assert len(kept) <= 4_096, "a copy for a snapshot costs this many entries"


def test_a_snapshot_that_kept_whole_ids_is_read() -> None:
    ids = [f"job-{number}" for number in range(3_000)]
    state = State()
    for job_id in ids:
        taken.note(state.taken, job_id)
    lines = [
        b"taken " + json.dumps([(job_id, None) for job_id in part]).encode()
        for part in (ids[:1_000], ids[1_000:2_500], ids[2_500:])
    ]

    found = codec().load(lines, version=2)

    assert all(found.kept_under(job_id) for job_id in ids)
    assert fingerprint(found) == fingerprint(state)
