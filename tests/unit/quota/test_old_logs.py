"""A log of the first release, before there was a tree of teams, folds as it did then."""

from __future__ import annotations

from datetime import datetime

from gangline_bus.decision import Decision
from gangline_quota.core.decide import Quota
from gangline_quota.core.invariants import ledger_broken
from gangline_schemas.catalog import event_types
from gangline_schemas.team_limits import TeamConfig

LOG = [
    (
        "team.configured",
        (
            '{"config":{"team":"nlp","gpu_limit":64,"gpu_guarantee":32,"borrow_limit":16},'
            '"user":"teams-file","request_id":"r1"}'
        ),
    ),
    (
        "job.admitted",
        (
            '{"job_id":"a","spec":{"version":1,"name":"a","team":"nlp","command":["x"],'
            '"resources":{"gpus":4}},"user":"ada","submitted_at":"2026-11-21T08:00:00Z"}'
        ),
    ),
    (
        "gang.metered",
        '{"job_id":"a","attempt":1,"team":"nlp","gpus":4,"allocated_at":"2026-11-21T08:00:00Z"}',
    ),
    (
        "usage.charged",
        (
            '{"job_id":"a","attempt":1,"team":"nlp","gpus":4,"allocated_at":"2026-11-21T08:00:00Z",'
            '"released_at":"2026-11-21T08:00:00.300000Z","gpu_seconds":1.2000000000000002}'
        ),
    ),
    (
        "gang.metered",
        '{"job_id":"a","attempt":2,"team":"nlp","gpus":2,"allocated_at":"2026-11-21T08:01:00Z"}',
    ),
    ("job.closed", '{"job_id":"a","state":"succeeded"}'),
]


def test_an_old_log_folds_with_exact_sums() -> None:
    quota = Quota()
    state = quota.initial()
    for kind, text in LOG:
        event = event_types()[kind].decode(text)
        state = quota.evolve(state, Decision("s", event), datetime.min)  # noqa: DTZ901 - unused

    config = TeamConfig(team="nlp", gpu_limit=64, gpu_guarantee=32, borrow_limit=16)
    assert state.teams == {"nlp": config}
    assert (config.parent, config.weight, config.gpu_types) == (None, 1.0, ())
    assert state.from_file == {"nlp": config}
    assert state.spent_us == {("nlp", "2026-11"): 1_200_000}
    assert state.ended["a"].gpu_us == 1_200_000
    assert state.allocated == {"nlp": 2}
    assert quota.check(state) == []
    assert ledger_broken(state) == []
