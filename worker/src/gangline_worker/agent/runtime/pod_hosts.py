"""The agent's side of `pod_host`: the pods of gangs on this node, and the ranks in them.

Each pod has a folder below the agent's sockets, which it mounts under the same path. The agent
listens there, and the pod's first process connects: only the team's user can. A pod of Kubernetes
lives longer than an attempt, so the next one starts in it. A container that the agent starts itself
(`containers`) is a pod for one attempt.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import structlog

from gangline_schemas.job_pods import POD_SOCKET, pod_folder
from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.agent.host.trees import delete_tree
from gangline_worker.agent.isolation.cold_start import Launch
from gangline_worker.agent.isolation.files import Owner, listen_for

from .pod_link import (
    CREDENTIALS,
    JobPod,
    PodMissing,
    first_word,
    has_hung_up,
    pod_folders,
    rank_name,
)

log = structlog.get_logger(__name__)

_KEPT_S = 48 * 3600.0
_REPORT_S = 2.0
"""So long after a rank's process is gone, the report of its end may come."""
_PACKET_BYTES = 65_536
_ODD = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""Raised for a packet that a pod's first process never sends."""
_LINKS = 16


@dataclass(frozen=True, slots=True)
class PodWaits:
    """Seconds until a pod comes to its node, and then until its image runs."""

    bind_s: float
    start_s: float


class PodRank:
    """A rank in a pod that waits at its gate; else as `subprocess.Popen`."""

    def __init__(
        self,
        hosts: PodHosts,
        rank: RankKey,
        pid: int,
        pipes: tuple[int, int],
        gate: socket.socket | None = None,
    ) -> None:
        self.pid = pid
        self.stdout: IO[bytes] = os.fdopen(pipes[0], "rb", 0)
        self.stderr: IO[bytes] = os.fdopen(pipes[1], "rb", 0)
        self._hosts, self._rank, self._gate = hosts, rank, gate

    def open_gate(self) -> None:
        """Let it begin, once it is known."""
        if self._gate is not None:
            with self._gate, contextlib.suppress(OSError):
                self._gate.send(b"1")

    def signal(self, number: int, *, group: bool) -> None:
        """Send it, or its process group, a signal, unless it has ended."""
        self._hosts.order(self._rank, do="signal", signal=number, group=group)

    def wait(self) -> int:
        """Once its process is gone: its exit code, or the negative number of a signal."""
        return self._hosts.status(self._rank)


def kubectl_missing(node: str, waits: PodWaits) -> Callable[[GangKey, bool], str]:
    """The words for a pod of Kubernetes that is not there, by whether it came to the node."""

    def words(gang: GangKey, come: bool) -> str:  # noqa: FBT001 -- as the type says
        if come:
            pods = f"kubectl get pods --all-namespaces -l gangline.dev/job={gang.job_id}"
            return (
                f"pod not started: its image did not run within {waits.start_s:g} s, or has "
                f"no Python 3.8 (see {pods})"
            )
        return (
            f"pod not bound: no pod of the gang came to node {node} within "
            f"{waits.bind_s:g} s; others took its place, or a scheduling gate such as Kueue's "
            "holds it: the log of kube-pods has the reason"
        )

    return words


def _of_job(gang: GangKey) -> str:
    return gang.job_id


class PodHosts:
    """All pods of this node's gangs. May be used by many threads."""

    def __init__(
        self,
        sockets: Path,
        waits: PodWaits,
        missing: Callable[[GangKey, bool], str],
        name: Callable[[GangKey], str] = _of_job,
        *,
        for_all: bool = True,
        own_network: bool = False,
    ) -> None:
        """`name`: of the pod that a gang runs in; `missing`: the words if it does not come.

        `for_all`: all ranks of this node run in pods, and what their containers' environment has
        counts for them. `own_network`: pods have another network than their node.
        """
        self._sockets, self._waits, self._missing, self._name = sockets, waits, missing, name
        self.for_all, self.own_network = for_all, own_network
        self._pods: dict[str, JobPod] = {}
        self._changed = threading.Condition()
        self._lease_ends: float | None = None
        self._stopping = False
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="pods", daemon=True)
        self._thread.start()

    def folder(self, pod: str) -> Path:
        """The folder that the pod of this name, by default its job's, shares with this agent."""
        return self._sockets / pod_folder(pod)

    def expect(self, gang: GangKey, owner: Owner | None) -> Path:
        """Listen for the gang's pod, which runs as this user; the folder. Raises OSError."""
        name = self._name(gang)
        folder = self.folder(name)
        with self._changed:
            if self._stopping:
                raise PodMissing("the agent ends")
            pod = self._pods.get(name)
            if pod is None:
                pod = self._pods[name] = self._listen(name, folder, owner)
            pod.gangs.add(gang)
            pod.refused = ""
        os.utime(folder)
        return folder

    def refuse(self, gang: GangKey, reason: str) -> None:
        """End all waits for the gang's pod, which ended or will not come."""
        with self._changed:
            pod = self._pods.get(self._name(gang))
            if pod is not None:
                pod.refused = reason
                self._changed.notify_all()

    def _listen(self, name: str, folder: Path, owner: Owner | None) -> JobPod:
        folder.mkdir(mode=0o711, exist_ok=True)
        folder.chmod(0o711)  # kubelet may have made it
        listener = listen_for(owner, folder / POD_SOCKET, socket.SOCK_SEQPACKET)
        uid = owner.uid if owner is not None else os.getuid()
        pod = JobPod(name, uid, listener)
        self._selector.register(listener, selectors.EVENT_READ, (pod, None))
        self._wake()
        return pod

    def wait(self, gang: GangKey, shared: Sequence[Path]) -> None:
        """Until the gang's pod runs here and has these folders. Raises PodMissing."""
        begun = time.monotonic()
        with self._changed:
            pod = self._pods.get(self._name(gang))
            if pod is not None:
                pod.sees = False
                self._look(pod, shared)
            while pod is not None and (pod.leaving or not pod.sees):
                if self._stopping or gang not in pod.gangs:
                    raise PodMissing("the gang ended before its pod ran")
                if pod.left_s > begun:
                    raise PodMissing("its pod was deleted before its ranks ran")
                if pod.refused:
                    raise PodMissing(pod.refused)
                come_s = pod.come_s
                limit_s = self._waits.bind_s if come_s is None else self._waits.start_s
                left_s = (come_s or begun) + limit_s - time.monotonic()
                if left_s <= 0:
                    raise PodMissing(self._missing(gang, come_s is not None))
                had = pod.connection
                self._changed.wait(left_s)
                if pod.connection is not had:
                    self._look(pod, shared)
            if pod is None:
                raise PodMissing("the gang ended before its pod ran")

    def _look(self, pod: JobPod, shared: Sequence[Path]) -> None:
        """Have the pod compare the folders that it has with these. A new one has nothing yet."""
        if pod.connection is None:
            return
        found = [(str(path), (at := path.stat()).st_dev, at.st_ino) for path in shared]
        pod.send({"do": "see", "folders": json.dumps(found)})

    def is_leaving(self, name: str) -> bool:
        """Whether the pod was deleted, and ends with its last rank."""
        with self._changed:
            pod = self._pods.get(name)
            return pod is not None and pod.leaving

    def start(self, launch: Launch) -> PodRank:
        """Start a rank, which waits at its gate. Raises OSError."""
        program = os.memfd_create("program", os.MFD_CLOEXEC)
        with os.fdopen(os.dup(program), "wb") as file:
            wanted = {
                "command": launch.command,
                "environment": dict(launch.environment),
                "folder": str(launch.folder) if launch.workdir is None else launch.workdir,
                "alone": not self.for_all,
            }
            file.write(json.dumps(wanted).encode())
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        outer, outer_in = os.pipe2(os.O_CLOEXEC)
        error, error_in = os.pipe2(os.O_CLOEXEC)
        files = (program, outer_in, error_in, theirs.fileno())
        try:
            with self._changed:
                pod = self._pods.get(self._name(launch.rank.gang))
                if pod is None or pod.connection is None or pod.leaving:
                    raise PodMissing(0, "its pod is gone")
                name = rank_name(launch.rank)
                pod.ended.pop(name, None)
                pod.send({"do": "start", "rank": name}, files)
            pid = first_word(ours, theirs)
        except BaseException as problem:
            if isinstance(problem, (BlockingIOError, TimeoutError)):
                self._give_up(self._name(launch.rank.gang))
                problem = PodMissing(0, "its pod does not answer")
            for descriptor in (outer, error):
                os.close(descriptor)
            ours.close()
            raise problem from None
        finally:
            for descriptor in (program, outer_in, error_in):
                os.close(descriptor)
            theirs.close()
        return PodRank(self, launch.rank, pid, (outer, error), ours)

    def _give_up(self, name: str) -> None:
        """Wait for no further rank of a pod that does not answer: it has to connect again."""
        with self._changed:
            pod = self._pods.get(name)
            if pod is not None and pod.connection is not None:
                self._hang_up(pod, pod.connection)

    def adopt(self, rank: RankKey, pid: int, stdout: int, stderr: int) -> PodRank:
        """A rank that this process started before the agent reloaded."""
        for descriptor in (stdout, stderr):
            os.set_inheritable(descriptor, False)
        return PodRank(self, rank, pid, (stdout, stderr))

    def order(self, rank: RankKey, **order: Any) -> None:
        """Give the pod of a rank an order about it, if it is there."""
        with self._changed:
            pod = self._pods.get(self._name(rank.gang))
            if pod is not None:
                pod.send({"rank": rank_name(rank), **order})

    def status(self, rank: RankKey) -> int:
        """The status of a rank whose process is gone; of one whose pod is gone, -SIGKILL."""
        name = rank_name(rank)
        with self._changed:
            pod = self._pods.get(self._name(rank.gang))
            if pod is not None:
                self._changed.wait_for(lambda: name in pod.ended or self._stopping, _REPORT_S)
            code = pod.ended.pop(name, None) if pod is not None else None
        self.order(rank, do="noted")
        return -9 if code is None else code

    def extend(self, lease_ends_s: float) -> None:
        """Ranks may run until then (monotonic seconds)."""
        with self._changed:
            self._lease_ends = lease_ends_s
            for pod in self._pods.values():
                pod.send({"do": "lease", "ends": lease_ends_s})

    def leave(self, gang: GangKey, *, final: bool) -> None:
        """The gang has ended here; `final`: its pod will, too."""
        name = self._name(gang)
        with self._changed:
            pod = self._pods.get(name)
            if pod is None:
                return
            pod.gangs.discard(gang)
            if final and not pod.gangs:
                del self._pods[name]
                self._forget(pod)
                delete_tree(self.folder(name))
            self._changed.notify_all()

    def clean(self) -> None:
        """Delete the folders of jobs whose end is not known, once they are old."""
        before_s = time.time() - _KEPT_S
        with self._changed:
            known = {self.folder(name) for name in self._pods}
            for folder in pod_folders(self._sockets):
                with contextlib.suppress(OSError):
                    if folder not in known and folder.stat().st_mtime < before_s:
                        delete_tree(folder)

    def stop(self) -> None:
        """Wait for no pod any more. Pods live on."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._wake()
        self._thread.join()
        with self._changed:
            for pod in self._pods.values():
                self._forget(pod)
            self._pods.clear()
            for key in list(self._selector.get_map().values()):  # those without a hello
                if isinstance(key.fileobj, socket.socket):
                    key.fileobj.close()
            self._selector.close()
            self._waker.close()

    def _forget(self, pod: JobPod) -> None:
        if pod.connection is not None:
            self._hang_up(pod, pod.connection)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(pod.listener)
        pod.listener.close()

    def _hang_up(self, pod: JobPod, connection: socket.socket) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection)
        connection.close()
        pod.links -= 1
        if pod.connection is connection:
            pod.connection, pod.come_s = None, None
            pod.sees = pod.leaving = False

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b"w")

    def _run(self) -> None:
        while not self._stopping:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._woken.recv(64)
                    continue
                pod, connection = key.data
                with self._changed:
                    if connection is None:
                        self._accept(pod)
                    else:
                        self._receive(pod, connection)
                    self._changed.notify_all()

    def _accept(self, pod: JobPod) -> None:
        with contextlib.suppress(OSError):  # it was forgotten meanwhile
            connection, _ = pod.listener.accept()
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
            pid, uid, _ = CREDENTIALS.unpack(raw)
            if pod.links >= _LINKS:
                connection.close()
                return
            if uid != pod.uid or pid <= 0:
                pod.refused = (
                    f"its pod runs as user {uid}, and the team's is {pod.uid} here"
                    if pid > 0
                    else "the agent does not see processes of pods: its own needs hostPID"
                )
                log.warning("pod.refused", pod=pod.name, reason=pod.refused)
                connection.close()
                return
            pod.links += 1
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ, (pod, connection))

    def _receive(self, pod: JobPod, connection: socket.socket) -> None:
        if connection.fileno() < 0:  # another one has just taken its place
            return
        try:
            data = connection.recv(_PACKET_BYTES, socket.MSG_DONTWAIT)
            said = json.loads(data) if data else None
        except BlockingIOError:
            return
        except (OSError, ValueError, RecursionError):
            said = None
        with contextlib.suppress(*_ODD):  # the job's own
            if said is not None:
                self._heard(pod, connection, said)
                return
        self._hang_up(pod, connection)

    def _heard(self, pod: JobPod, connection: socket.socket, said: dict[str, Any]) -> None:
        if "here" in said:
            pod.come_s, pod.leaving = time.monotonic(), False
        elif "hello" in said and connection is not pod.connection:
            if pod.connection is not None:
                if not has_hung_up(pod.connection):
                    return  # a program of the job's own connects; it gets no answer
                self._hang_up(pod, pod.connection)
            pod.connection, pod.leaving = connection, bool(said.get("leaving"))
            pod.come_s = time.monotonic()
            pod.note_ends(said["hello"]["ended"].items())
            if self._lease_ends is not None:
                pod.send({"do": "lease", "ends": self._lease_ends})
        elif connection is not pod.connection:
            return
        elif "ended" in said:
            pod.note_ends([(said["ended"], said["code"])])
        elif "sees" in said:
            pod.sees = True
        elif "leaving" in said:
            pod.leaving, pod.left_s = True, time.monotonic()
