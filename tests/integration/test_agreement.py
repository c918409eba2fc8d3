"""What becomes of agreements when a rank, or the rendezvous store, goes away: real processes."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from gangline_worker.checkpoint.commit import committed
from support.harnesses.agreeing_ranks import EXIT_LOST, Ranks, store_process
from support.harnesses.gang import Gang
from support.waiting import until

RANKS = 6
"""As many as let some ranks learn of rank 0 from others."""


def run(ranks: Ranks) -> list[int | None]:
    ranks.met()
    ranks.go()
    return ranks.codes()


@pytest.mark.parametrize("rank", [0, 4])
def test_a_rank_that_dies_ends_the_others_exchange(rank: int) -> None:
    with store_process() as (_, port):
        codes = run(Ranks(RANKS, port, "dies", DIES=rank))
    assert codes == [9 if rank == each else EXIT_LOST for each in range(RANKS)]


def test_ranks_that_met_agree_without_the_store() -> None:
    with store_process() as (store, port):
        ranks = Ranks(RANKS, port, "rounds")
        ranks.met()
        store.kill()
        store.join()
        ranks.go()
        assert ranks.codes() == [0] * RANKS


def test_training_ends_well_without_the_store(tmp_path: Path) -> None:
    with store_process() as (store, port):
        env = {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        gang = Gang(tmp_path, 2, ["steps=60", "checkpoint_every_steps=30"], extra_env=env)
        try:
            gang.wait_for(r"step 1/")
            store.kill()
            store.join()
            run = gang.wait()
        finally:
            gang.kill()
    assert run.codes == (0, 0), run.text
    assert [folder.name for folder in committed(tmp_path / "checkpoints")][-1].endswith("60")


def test_a_store_that_dies_while_ranks_meet_ends_them() -> None:
    with store_process() as (store, port):
        ranks = Ranks(2, port, "rounds", WORLD_SIZE=3)
        seen = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        until(lambda: len(seen.list_keys()) >= 2)  # the addresses of both: they wait for the third
        store.kill()
        assert ranks.codes() == [EXIT_LOST] * 2


def test_rank_0_which_hosts_the_store_says_the_attempt_and_leaves(tmp_path: Path) -> None:
    for rank in range(RANKS):
        (tmp_path / str(rank) / "attempt-0016").mkdir(parents=True)
    (tmp_path / "0" / "attempt-0040").mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    codes = run(Ranks(RANKS, port, "attempt", hosted=False, FOLDERS=tmp_path))
    assert codes == [41] * RANKS
