"""A gang agrees over few connections, however many ranks it has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch.distributed as dist

from gangline_worker.gang_store import from_rank_0, gang_store
from gangline_worker.training.agreement import all_same
from gangline_worker.training.control import open_control
from support.harnesses.many_ranks import agree

RANKS = int(os.environ.get("GANGLINE_AGREEING_RANKS", "256"))


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[dist.Store]:
    """A gang of one rank, and its store."""
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    store = dist.HashStore()
    dist.init_process_group("gloo", rank=0, world_size=1, store=store)
    yield store
    dist.destroy_process_group()


def test_a_large_gang_agrees_and_its_connections_do_not_grow_with_the_square_of_its_ranks() -> None:
    agreed = agree(dist.HashStore(), RANKS, rounds=3)
    [summary] = set(agreed.summaries)
    assert summary.loss == (RANKS - 1) / 2
    assert summary.failed_saves == RANKS * (RANKS - 1) / 2
    assert summary.data_wait_s == (RANKS - 1) / 8
    assert (summary.stop, summary.lost) == (True, False)
    # Two ends of a connection to rank 0 and of one in the tree, and a listening socket.
    assert agreed.sockets <= 5 * RANKS


def test_one_rank_agrees_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert all_same(open_control(dist.HashStore(), 0, 1, 10.0), 2.0**52 - 1)


def test_a_rank_waits_one_time_out_for_a_gang_that_does_not_come() -> None:
    with pytest.raises(RuntimeError, match=r"^1 of 6 ranks came in 0\.1 s$"):
        open_control(dist.HashStore(), 5, 6, timeout_s=0.1)


def test_an_agreement_has_the_whole_time_out_once_ranks_have_met(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    group = open_control(dist.HashStore(), 0, 1, 10.0)
    assert group.options._timeout == timedelta(seconds=10)


def test_uses_and_attempts_read_no_keys_of_each_other(
    alone: dist.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang_store("control").set("0", "of the first")
    assert not gang_store("said/0").check(["0"])
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert not gang_store("control").check(["0"])


def test_an_attempt_agrees_at_the_store_of_the_one_before(
    alone: dist.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for attempt, ranks in enumerate((4, 3)):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(attempt))
        agreed = agree(gang_store("control"), ranks, rounds=1)
        assert [one.loss for one in agreed.summaries] == [(ranks - 1) / 2] * ranks


def test_each_number_that_rank_0_says_is_read_apart(alone: dist.Store) -> None:
    assert [from_rank_0(number) for number in (7, 8)] == [7, 8]
