"""Faults on one machine: each is done to a job that trains and has a committed checkpoint."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from chaos.fault import Fault
from chaos.world import SAVE_EVERY, STEPS, Attack, Broken
from gangline_schemas.events.scheduling import CheckpointRef

NAN_ONCE = Path(__file__).with_name("nan_once.py")


def kill_rank(attack: Attack) -> None:
    attack.wait_committed()
    attack.kill_rank()


def freeze_rank(attack: Attack) -> None:
    attack.wait_committed()
    os.kill(attack.pids()[1], signal.SIGSTOP)


def kill_agent(attack: Attack) -> None:
    attack.wait_committed()
    os.kill(attack.agent_tree()[-1], signal.SIGKILL)


def kill_node(attack: Attack) -> None:
    attack.wait_committed()
    for pid in attack.agent_tree():
        _end(pid)


def stop_agent(attack: Attack) -> None:
    """The node is asked to leave: its ranks save, and the job moves."""
    attack.wait_committed()
    os.kill(attack.agent_tree()[-1], signal.SIGTERM)


def freeze_agent(attack: Attack) -> None:
    """The agent stands still beyond its lease: its guard ends the ranks."""
    attack.wait_committed()
    agent = attack.agent_tree()[-1]
    os.kill(agent, signal.SIGSTOP)
    try:
        attack.wait("gang.failed")
    finally:
        os.kill(agent, signal.SIGCONT)


def store_away(attack: Attack) -> None:
    """Nothing can be read from the store or written there while some saves are due."""
    attack.wait_committed()
    folder = attack.platform.data_dir / "store" / "teams"
    aside = folder.with_name("teams-aside")
    folder.rename(aside)
    folder.touch()
    try:
        reached = attack.newest_commit().step + 2 * SAVE_EVERY
        attack.wait("worker.step", lambda data: max(data.step) >= reached)
    finally:
        folder.unlink()
        aside.rename(folder)


def kill_broker(attack: Attack) -> None:
    attack.wait_committed()
    os.kill(attack.platform.pid("kafka"), signal.SIGKILL)


def kill_while_writing(attack: Attack) -> None:
    """The files of the save are being written."""
    attack.wait_committed()
    attack.wait_local(_due(attack))
    attack.kill_rank()


def kill_between_shards(attack: Attack) -> None:
    """One rank's part is in the store, the commit is not there yet."""
    attack.wait("checkpoint.shard.written", lambda data: data.step >= 2 * SAVE_EVERY)
    attack.kill_rank()


def kill_before_commit(attack: Attack) -> None:
    """All parts are in the store, and the service that would commit them stands still."""
    attack.wait_committed()
    service = attack.platform.pid("checkpoint-service-0")
    os.kill(service, signal.SIGSTOP)
    try:
        _wait_written(attack)
        attack.kill_rank()
        attack.wait("gang.failed")
    finally:
        os.kill(service, signal.SIGCONT)


def kill_committing_service(attack: Attack) -> None:
    """It has all parts and verifies them, or has put the record, or has just committed."""
    attack.wait_committed()
    _wait_written(attack)
    os.kill(attack.platform.pid("checkpoint-service-0"), signal.SIGKILL)


def kill_after_commit(attack: Attack) -> None:
    attack.wait_committed(2 * SAVE_EVERY)
    attack.kill_rank(0)


def go_bad(attack: Attack) -> None:
    """A weight of rank 0 becomes NaN, by the program of the job itself: the next save tells."""
    attack.wait("gang.failed")
    attack.watch.settle()
    if attack.last_step(1) == STEPS:
        raise Broken("it trained to the end with a weight that is NaN")


def flip_local(attack: Attack) -> None:
    _damage_local(attack, flip)


def cut_local(attack: Attack) -> None:
    _damage_local(attack, _cut)


def delete_local(attack: Attack) -> None:
    _damage_local(attack, Path.unlink)


def flip_stored(attack: Attack) -> None:
    _damage_stored(attack, flip)


def cut_stored(attack: Attack) -> None:
    _damage_stored(attack, _cut)


def delete_stored(attack: Attack) -> None:
    _damage_stored(attack, Path.unlink)


FAULTS_OF_PROCESSES = (
    Fault("kill -9 of a rank", kill_rank),
    Fault("a rank is frozen", freeze_rank),
    Fault("kill -9 of the agent", kill_agent),
    Fault("kill -9 of all of a node", kill_node),
    Fault("a node is asked to leave", stop_agent),
    Fault("the agent is frozen", freeze_agent),
    Fault("the store is away", store_away, restarts=False),
    Fault("kill -9 of the broker", kill_broker, restarts=False),
    Fault("killed while writing", kill_while_writing),
    Fault("killed between two shards", kill_between_shards),
    Fault("killed before the commit", kill_before_commit),
    Fault("the service, at a commit", kill_committing_service, restarts=False),
    Fault("killed after the commit", kill_after_commit),
    Fault("a weight becomes NaN", go_bad, command=("python", str(NAN_ONCE))),
    Fault("a bit flips on the node", flip_local),
    Fault("a shard is cut on the node", cut_local),
    Fault("a shard is gone on the node", delete_local),
    Fault("a bit flips in the store", flip_stored, found="checkpoint.corrupted"),
    Fault("a shard is cut in the store", cut_stored, found="checkpoint.corrupted"),
    Fault("a shard is gone in the store", delete_stored, found="checkpoint.corrupted"),
)


def _due(attack: Attack) -> int:
    """The step of the next save but one: the next may be under way."""
    attack.watch.settle()
    return (attack.last_step(attack.attempt()) // SAVE_EVERY + 2) * SAVE_EVERY


def _wait_written(attack: Attack) -> None:
    """Until all parts of a save were just reported."""
    due = _due(attack)
    for wanted in range(2):
        attack.wait(
            "checkpoint.shard.written",
            lambda data, rank=wanted: (data.step, data.rank) == (due, rank),
        )


def _damage_local(attack: Attack, damage: Callable[[Path], None]) -> None:
    """The node's own copy of the newest checkpoint; the store's is whole."""
    ref = frozen_newest(attack)
    damage(_own_file(attack.local_files(ref.attempt, ref.step) / "rank-00000.bin"))
    attack.kill_rank()


def _damage_stored(attack: Attack, damage: Callable[[Path], None]) -> None:
    """The store's copy, and the node has none: the newest checkpoint cannot be used."""
    ref = frozen_newest(attack, at_least=2 * SAVE_EVERY)
    damage(_own_file(attack.stored_files(ref) / "rank-00001.bin"))
    for node in (attack.platform.data_dir / "nodes").iterdir():
        shutil.rmtree(node / "checkpoints" / attack.job, ignore_errors=True)
    attack.kill_rank()


def frozen_newest(attack: Attack, at_least: int = SAVE_EVERY) -> CheckpointRef:
    """The newest checkpoint, with all ranks stopped and none on its way: no newer one comes."""
    attack.wait_committed(at_least)
    for pid in attack.pids():
        os.kill(pid, signal.SIGSTOP)
    quiet_since = time.monotonic()
    news = attack.newest_commit(), attack.newest_saved()
    while time.monotonic() - quiet_since < (1.0 if news[0].step >= news[1] else 30.0):
        attack.watch.poll(0.1)
        if (attack.newest_commit(), attack.newest_saved()) != news:
            news = attack.newest_commit(), attack.newest_saved()
            quiet_since = time.monotonic()
    return news[0]


def _own_file(path: Path) -> Path:
    """The same bytes in a file of its own: on one file system both tiers share them by a link.

    The S3 server keeps an object's ETag in the file's attributes.
    """
    copy = path.with_suffix(".copy")
    shutil.copy2(path, copy)
    copy.replace(path)
    return path


def flip(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
