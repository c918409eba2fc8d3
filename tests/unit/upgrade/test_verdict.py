"""What `make upgrade` calls a loss, and how it shows it."""

import pytest

from upgrade.jobs import gaps
from upgrade.story import Change, Verdict, table


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ([1, 2, 3], []),
        ([0, 1, 2], []),
        ([3, 1, 2], []),
        ([], ["job: no step"]),
        ([1, 2, 4, 5], ["job: begins at step 1, 1 steps missing, 0 twice"]),
        ([1, 2, 2, 3], ["job: begins at step 1, 0 steps missing, 1 twice"]),
        ([7, 8], ["job: begins at step 7, 0 steps missing, 0 twice"]),
    ],
)
def test_each_step_from_the_first_to_the_last_must_be_there_once(
    steps: list[int], found: list[str]
):
    assert gaps("job", steps) == found


def test_the_table_has_a_row_a_part_and_the_sums() -> None:
    verdict = Verdict(
        changes=[
            Change("quota-0", "forward", 2.0, 0, 0, 0),
            Change("node-0", "forward", 3.0, 1, 2, 0),
            Change("quota-0", "back", 4.0, 0, 0, 0),
        ],
        jobs=3, steps=30, crashes={"gateway-0": 1}, dead_letters={"workers.dlq": 2},
    )  # fmt: skip

    assert list(table(verdict)) == [
        "part                    forward     back  restarts  dead letters  lost",
        "quota-0                   2.0 s    4.0 s         0             0     0",
        "node-0                    3.0 s    0.0 s         1             2     0",
        "3 changes, 3 jobs, 30 steps: 1 restarts, 2 dead letters, 0 lost",
        "restarted: gateway-0, 1",
        "dead letters: workers.dlq, 2",
    ]
    assert not verdict.good
    assert Verdict().good
