"""Faults of machines that stand apart: networks, disks, a store behind a network, a cloud."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from chaos.deaths import Deaths
from chaos.fault import Fault
from chaos.faults import cut_stored, delete_stored, flip_stored
from chaos.world import SAVE_EVERY, STEPS, Attack, Broken
from gangline_schemas.checkpoint import manifest_name

SLOWER = 10.0
STUCK = 400.0
NOTICE_S = 120.0
BELOW_RESERVE_BYTES = 16 << 20


def cut_off(attack: Attack) -> None:
    """The node of the job reaches neither the bus nor the store."""
    attack.wait_committed()
    node = attack.platform.nodes[attack.node()]
    with Deaths(attack.pids()) as deaths:
        node.cut()
        try:
            attack.wait("worker.started", lambda data: data.attempt > 1)
            deaths.must_precede(attack.pids())
        finally:
            node.mend()


def fill_disk(attack: Attack) -> None:
    """Saves find no room and the job trains on; then not a byte is left, and it may move."""
    attack.wait_committed()
    disk = attack.platform.nodes[attack.node()].disk
    try:
        disk.fill(leave_bytes=BELOW_RESERVE_BYTES)
        attack.wait(
            "worker.log", lambda data: any("training continues" in s.text for s in data.lines)
        )
        _train_on(attack)
        disk.fill(leave_bytes=0)
        attack.wait_node_log("spool.not_written", or_attempt=2)
    finally:
        disk.clear()


def slow_store(attack: Attack) -> None:
    """Everything takes ten times as long there, until some saves are committed all the same."""
    attack.wait_committed()
    with _slower(attack, SLOWER):
        attack.wait_committed(attack.newest_commit().step + 3 * SAVE_EVERY)


def store_answers_nothing(attack: Attack) -> None:
    """Requests to the S3 server stay without an answer while some saves are due."""
    attack.wait_committed()
    for link in attack.platform.store_links():
        link.cut()
    try:
        _train_on(attack)
    finally:
        for link in attack.platform.store_links():
            link.mend()


def kill_while_uploading(attack: Attack) -> None:
    """The node has all of the checkpoint, the store has not."""
    with _uploading(attack):
        attack.kill_rank()
        attack.wait("gang.failed")


def kill_agent_while_uploading(attack: Attack) -> None:
    with _uploading(attack):
        os.kill(attack.agent_tree()[-1], signal.SIGKILL)
        attack.wait("gang.failed")


def spot_notice(attack: Attack) -> None:
    """The cloud takes the node away in two minutes: its ranks save, and the job moves at once."""
    attack.wait_committed()
    name, known = attack.node(), len(attack.watch.seen)
    node = attack.platform.nodes[name]
    node.take_away(NOTICE_S)
    try:
        attack.watch.wait_for(
            lambda s: s.type == "node.leaving" and s.data.node_id == name, after=known
        )
        moved = attack.wait("gang.allocated", lambda data: data.attempt > 1).data
        attack.wait("worker.step", lambda data: data.attempt > 1)
        attack.watch.settle()
        if attack.node() == name:
            raise Broken("the job stayed on a node that goes")
        taken, kept = attack.last_step(1), moved.resume.step
        if taken != kept:
            raise Broken(f"step {taken} was taken, and step {kept} saved, in spite of the notice")
    finally:
        node.cloud.spot_action = None


def cut_cable(attack: Attack) -> None:
    """Of two machines with a rank each, both reach the bus; a second attempt meets no better."""
    attack.wait_committed()
    machine = attack.platform.joined[attack.node()].machine
    machine.cut()
    try:
        attack.wait("worker.started", lambda data: data.attempt > 1)
    finally:
        machine.mend()


def cut_machine(attack: Attack) -> None:
    """One of the two reaches neither the bus nor the other; the job needs both."""
    attack.wait_committed()
    name, known = attack.node(), len(attack.watch.seen)
    joined = attack.platform.joined[name]
    with Deaths(attack.pids()) as deaths:
        joined.cut()
        try:
            attack.watch.wait_for(
                lambda s: s.type == "node.failed" and s.data.node_id == name, after=known
            )
        finally:
            joined.mend()
        for rank in range(2):
            attack.wait("worker.started", lambda d, r=rank: d.attempt > 1 and d.rank == r)
        deaths.must_precede(attack.pids())


FAULTS_APART = (
    Fault("a node is cut off", cut_off, place="apart"),
    Fault("a node's disk is full", fill_disk, restarts=None, gaps=True, place="apart", disk=True),
    Fault("the store is 10 times slower", slow_store, restarts=False, place="apart"),
    Fault("the store answers nothing", store_answers_nothing, restarts=False, place="apart"),
    Fault("killed while uploading", kill_while_uploading, place="apart"),
    Fault("the agent, while uploading", kill_agent_while_uploading, place="apart"),
    Fault("a spot notice", spot_notice, place="apart"),
    Fault("a bit flips in S3", flip_stored, found="checkpoint.corrupted", place="apart"),
    Fault("a shard is cut in S3", cut_stored, found="checkpoint.corrupted", place="apart"),
    Fault("a shard is gone in S3", delete_stored, found="checkpoint.corrupted", place="apart"),
    Fault("ranks do not reach each other", cut_cable, place="joined"),
    Fault("a machine is cut off", cut_machine, place="joined"),
)


def _train_on(attack: Attack) -> None:
    """Until two more saves were due, or all steps were taken."""
    attack.watch.settle()
    reached = min(STEPS, attack.last_step(attack.attempt()) + 2 * SAVE_EVERY)
    attack.wait("worker.step", lambda data: max(data.step) >= reached)


@contextmanager
def _slower(attack: Attack, factor: float) -> Iterator[None]:
    for link in attack.platform.store_links():
        link.slow(factor)
    try:
        yield
    finally:
        for link in attack.platform.store_links():
            link.slow(1.0)


@contextmanager
def _uploading(attack: Attack) -> Iterator[None]:
    """A save is complete on the node, and on its very slow way to the store."""
    attack.wait_committed()
    with _slower(attack, STUCK):
        due = (attack.newest_commit().step // SAVE_EVERY + 2) * SAVE_EVERY
        for rank in range(2):
            attack.wait_local(due, manifest_name(rank))
        yield
