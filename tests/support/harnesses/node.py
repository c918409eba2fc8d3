"""A node agent as a real process on a real bus; the test stands for scheduler and fault manager."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from textwrap import dedent
from typing import Self, TypeVar

from gangline_bus.codec import decode, encode
from gangline_bus.kafka import KafkaBus
from gangline_bus.ports import BusError
from gangline_bus.topics import TopicNames, create_topics
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic, topic_of
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.faults import FailureCause
from gangline_schemas.events.logs import WorkerLog
from gangline_schemas.events.scheduling import (
    CheckpointRef,
    GangAllocated,
    ReleaseReason,
    Rendezvous,
)
from gangline_schemas.events.workers import NodeInfo, NodeJoined, WorkerExited
from gangline_schemas.job import JobSpec
from support.builders.gangs import gang_allocated, gang_failed, gang_released, part_of
from support.waiting import DEADLINE_S, until

TEAM = "nlp"
_READY = {"off": ("", 0), "fork": ("zygote.ready", 1), "standby": ("standby.ready", 2)}
EventT = TypeVar("EventT", bound=Event)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat[stat.rindex(")") + 2] not in "ZX"
    return False


def python(script: str) -> list[str]:
    """The command of a rank that runs this program."""
    return ["python", "-c", dedent(script)]


def _entering(group: Path) -> list[str]:
    """What starts a command in a group that is delegated to it, as systemd does with Delegate=."""
    if group.exists():  # of an agent before
        for child in (entry for entry in group.iterdir() if entry.is_dir()):
            child.rmdir()
        group.rmdir()
    group.mkdir()
    os.setxattr(group, "trusted.delegate", b"1")
    return ["/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group)]


class NodeHarness:
    """One node, its agent (started with `start_agent`) and everything that it published."""

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        *,
        names: TopicNames | None = None,
        entering: Sequence[str] = (),
        **settings: str,
    ) -> None:
        """`names`: of another harness's topics; `entering`: what runs the agent somewhere else."""
        self.folder = folder
        self._entering = tuple(entering)
        self.store = folder / "store"
        self.secrets = folder / "secrets"
        self.names = names or TopicNames(f"t{uuid.uuid4().hex[:10]}.")
        self.agent: subprocess.Popen[bytes] | None = None
        self.events: list[Envelope] = []
        self.job_id = "job-1"
        """Of a gang without another one; `forget` changes it."""
        self._gangs: list[GangAllocated] = []
        self._forgotten: set[str] = set()
        self._changed = threading.Condition()
        self._bus = KafkaBus(bootstrap, client="harness")
        if names is None:
            create_topics(self._bus, self.names)
        self._writer = self._bus.writer()
        self._ended = threading.Event()
        self._environment = {
            **{key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ},
            "GANGLINE_BOOTSTRAP_SERVERS": bootstrap,
            "GANGLINE_TOPIC_PREFIX": self.names.prefix,
            "GANGLINE_NODE_ID": f"n{uuid.uuid4().hex[:8]}",
            "GANGLINE_DATA_DIR": str(folder / "node"),
            "GANGLINE_SECRETS_DIR": str(self.secrets),
            "GANGLINE_STORE_URL": f"file://{self.store}",
            "GANGLINE_SLOTS": "2",
            "GANGLINE_ADDRESS": "127.0.0.1",
            "GANGLINE_HEARTBEAT_INTERVAL_S": "0.2",
            "GANGLINE_ISOLATION": "process",  # ranks read the tests' folders
            "GANGLINE_NODE_CHECK": "off",
            "GANGLINE_WARM_START": "off",  # a zygote costs 4 s of CPU; see `start_agent`
            "AGENT_ONLY_VARIABLE": "of the agent alone",
            **settings,
        }
        self._log = (folder / "agent.log").open("ab")
        self._thread = threading.Thread(target=self._record, args=(bootstrap,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self.agent is not None and self.agent.poll() is None:
            self.agent.kill()
            self.agent.wait()
        self._thread.join(5)
        self._writer.close()
        self._log.close()

    def launch_agent(self) -> None:
        """Start the agent; in a control group of its own below GANGLINE_TEST_GROUPS, if set."""
        command = [*self._entering, sys.executable, "-m", "gangline_worker.agent"]
        if (groups := os.environ.get("GANGLINE_TEST_GROUPS")) is not None:
            command = [*_entering(Path(groups) / self._environment["GANGLINE_NODE_ID"]), *command]
        self.agent = subprocess.Popen(
            command, env=self._environment, stderr=self._log, stdout=self._log
        )

    def start_agent(self, *, warm: str = "off") -> NodeInfo:
        """Start the agent, unless it runs; wait until it has joined and ranks would start so."""
        if self.agent is not None and self.agent.poll() is None:
            return self._joined()[-1]
        self._environment["GANGLINE_WARM_START"] = warm
        joined = len(self._joined())
        self.launch_agent()
        self.wait(lambda: len(self._joined()) > joined, "the node never joined")
        ready, count = _READY[warm]
        log = self.folder / "agent.log"
        self.wait(lambda: log.read_text().count(ready) >= count, f"{warm}: none was ever ready")
        return self._joined()[-1]

    def forget(self) -> None:
        """Release all gangs, wait for their ends, and forget them: the next test has the agent."""
        for gang in self._gangs:
            self.release(gang, ReleaseReason.CANCELLED)
        ranks = sum(gang.world_size for gang in self._gangs)
        self.wait(lambda: len(self.of(WorkerExited)) >= ranks, "a gang never ended")
        with self._changed:
            self._forgotten |= {gang.job_id for gang in self._gangs}
            self._gangs.clear()
            self.events = [item for item in self.events if not self._is_forgotten(item)]
        self.job_id = f"job-{len(self._forgotten) + 1}"

    def _is_forgotten(self, item: Envelope) -> bool:
        job = getattr(item.data, "job_id", None) or getattr(item.data, "run_id", None)
        return job in self._forgotten

    def _joined(self) -> list[NodeInfo]:
        own = self._environment["GANGLINE_NODE_ID"]
        return [item.node for item in self.of(NodeJoined) if item.node.node_id == own]

    def kill_agent(self) -> None:
        assert self.agent is not None
        self.agent.kill()
        self.agent.wait()

    def stop_agent(self) -> int:
        assert self.agent is not None
        self.agent.send_signal(signal.SIGTERM)
        return self.agent.wait(DEADLINE_S)

    def publish(self, subject: str, event: Event) -> None:
        envelope = Envelope(
            id=str(uuid.uuid4()),
            source="/test",
            time=datetime.now(UTC),
            subject=subject,
            data=event,
        )
        self._writer.send(encode(envelope, topic=self.names.name(topic_of(event.type))))
        assert self._writer.flush(10.0) == 0

    @property
    def job_ids(self) -> list[str]:
        """The jobs whose gangs were allocated here, in that order."""
        return [gang.job_id for gang in self._gangs]

    def allocate(
        self,
        node: NodeInfo,
        *,
        job_id: str | None = None,
        attempt: int = 1,
        gpus: Sequence[int] = (0, 1),
        resume: CheckpointRef | None = None,
        team: str = TEAM,
        **spec: object,
    ) -> GangAllocated:
        """A gang that lies on this node alone."""
        wanted = {"name": "j", "team": team, "resources": {"gpus": len(gpus)}, **spec}
        event = gang_allocated(
            job_id or self.job_id,
            JobSpec.model_validate(wanted),
            part_of(node, gpus),
            attempt=attempt,
            rendezvous=Rendezvous(address="127.0.0.1", port=free_port()),
            resume=resume,
        )
        self._gangs.append(event)
        self.publish(event.job_id, event)
        return event

    def fail_as_hung(self, event: GangAllocated) -> None:
        """The fault manager finds the gang hung; the scheduler releases it to start again."""
        failed = gang_failed(event.job_id, event.attempt, datetime.now(UTC), FailureCause.HANG)
        self.publish(event.job_id, failed)
        self.release(event, ReleaseReason.RESTARTING)

    def release(self, event: GangAllocated, reason: ReleaseReason) -> None:
        released = gang_released(event.job_id, event.attempt, datetime.now(UTC), reason)
        self.publish(event.job_id, released)

    def of(self, kind: type[EventT]) -> list[EventT]:
        with self._changed:
            return [item.data for item in self.events if isinstance(item.data, kind)]

    def exits(self, count: int) -> dict[tuple[int, int], WorkerExited]:
        """The exits by (attempt, rank), once there are so many."""
        self.wait(lambda: len(self.of(WorkerExited)) >= count, f"there were never {count} exits")
        return {(item.attempt, item.rank): item for item in self.of(WorkerExited)}

    def lines(self, rank: int, attempt: int = 1, job_id: str | None = None) -> list[str]:
        """All lines of a rank that came by now, in order; a batch that came twice counts once.

        Logs and exits are on different topics: an exit may be read before the last lines.
        """
        batches = {
            item.first_line: item.lines
            for item in self.of(WorkerLog)
            if (item.rank, item.attempt) == (rank, attempt) and job_id in {None, item.job_id}
        }
        return [line.text for first in sorted(batches) for line in batches[first]]

    def wait(self, condition: Callable[[], bool], message: str = "it never came true") -> None:
        ends = time.monotonic() + DEADLINE_S
        while not condition():
            with self._changed:
                self._changed.wait(0.05)
            log = (self.folder / "agent.log").read_text()[-3000:]
            assert time.monotonic() < ends, f"{message}; the agent said:\n{log}"

    def _has_topics(self, bus: KafkaBus, topics: Sequence[Topic]) -> bool:
        """Whether the broker's metadata has them: it may follow their creation by a moment."""
        with contextlib.suppress(BusError):
            return all(self.names.places(bus, topic) for topic in topics)
        return False

    def _record(self, bootstrap: str) -> None:
        bus = KafkaBus(bootstrap, client="harness-record")
        reader = bus.reader("harness")
        topics = (
            Topic.WORKERS, Topic.FAULTS, Topic.LOGS, Topic.STEPS, Topic.HEARTBEATS, Topic.METRICS,
        )  # fmt: skip
        until(lambda: self._has_topics(bus, topics), "the broker never had the topics")
        reader.assign({place: 0 for topic in topics for place in self.names.places(bus, topic)})
        while not self._ended.is_set():
            found = [decode(record) for record in reader.poll(1000, 0.1)]
            if found:
                with self._changed:
                    self.events += [item for item in found if not self._is_forgotten(item)]
                    self._changed.notify_all()
        reader.close()
