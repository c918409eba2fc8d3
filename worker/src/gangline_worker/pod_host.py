"""The first process of a job's pod: it starts ranks as the node's agent orders, and reports ends.

    python3 -S pod_host.py run SOCKET LEASE_S      the pod's container
    python3 -S pod_host.py install TARGET SOCKET   the container before it: copies this file
    python3 -S pod_host.py room SOCKET LEASE_S     a container that the agent itself has started

It connects to the agent's Unix socket, which lies in a folder of the node, and connects again when
the agent restarts. It holds no credentials. It needs Python 3.8 and the standard library alone.

Each packet is a JSON object; files come with it (SCM_RIGHTS).
- From the agent: `start` a rank with four files (its program, stdout, stderr, and a gate), `signal`
  one, `noted` its end, `lease` until a time of the monotonic clock, and `see` folders.
- To the agent: `hello`, `ended`, `sees`, `leaving`. The ends that are not noted come again with the
  next hello.
A rank writes one byte to its gate, by which the agent learns its pid, and begins after one byte of
the agent's. When the lease ends, all ranks are killed, and a room ends too. After SIGTERM the pod
ends with its last rank.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import signal
import socket
import sys
import time

AGAIN_S, INSTALL_S = 0.2, 30.0
FILES = 4
PACKET_BYTES = 65_536
STALE_EXIT, LEFT_EXIT = 75, 0
_DEFAULT = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGPIPE", "SIGXFSZ", "SIGCHLD")
_NOT_PASSED_ON = ("KUBERNETES_",)


class Host:
    """All ranks of the pod. `run` returns the exit code of the pod."""

    def __init__(self, path: str, lease_s: float, *, ends_with_lease: bool) -> None:
        self._path = path
        self._ends_with_lease = ends_with_lease
        self._lease_ends = time.monotonic() + lease_s
        self._ranks: dict[int, str] = {}
        self._ended: dict[str, int] = {}
        self._agent: socket.socket | None = None
        self._unsent: list[dict[str, object]] = []
        self._leaving = False
        self._woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def run(self) -> int:
        """Start, reap and report, until the pod was deleted and no rank is left."""
        while True:
            if self._agent is None:
                self._connect()
            readable = [self._woken] + ([self._agent] if self._agent else [])
            writable = [self._agent] if self._agent and self._unsent else []
            ready, _, _ = select.select(readable, writable, [], AGAIN_S)
            if self._woken in ready:
                os.read(self._woken, 512)
            self._reap()
            if time.monotonic() > self._lease_ends and (self._ranks or self._ends_with_lease):
                self._say("the agent's lease has ended: all ranks are killed")
                self._kill_all()
                if self._ends_with_lease:
                    return LEFT_EXIT
            if self._agent is not None and self._agent in ready:
                self._receive(self._agent)
            self._send()
            if self._leaving and not self._ranks and not self._unsent:
                return LEFT_EXIT

    def _on_signal(self, number: int, _: object) -> None:
        if number == signal.SIGTERM and not self._leaving:
            self._leaving = True
            self._tell({"leaving": True})

    def _connect(self) -> None:
        agent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            agent.connect(self._path)
        except OSError:
            agent.close()
            return
        agent.setblocking(False)
        self._agent = agent
        hello = {"alive": sorted(self._ranks.values()), "ended": self._ended}
        self._unsent = [{"hello": hello, "leaving": self._leaving}]

    def _tell(self, packet: dict[str, object]) -> None:
        if self._agent is not None:  # else the next hello says it
            self._unsent.append(packet)

    def _send(self) -> None:
        while self._agent is not None and self._unsent:
            try:
                self._agent.send(json.dumps(self._unsent[0]).encode())
            except BlockingIOError:
                return
            except OSError:
                self._hang_up()
                return
            self._unsent.pop(0)

    def _hang_up(self) -> None:
        if self._agent is not None:
            self._agent.close()
        self._agent, self._unsent = None, []

    def _receive(self, agent: socket.socket) -> None:
        files = array.array("i")
        space = socket.CMSG_SPACE(FILES * files.itemsize)
        try:
            data, ancillary, _, _ = agent.recvmsg(PACKET_BYTES, space)
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                files.frombytes(content[: len(content) - len(content) % files.itemsize])
        try:
            if data:
                self._obey(json.loads(data), list(files))
            else:
                self._hang_up()
        finally:
            for file in files:
                os.close(file)

    def _obey(self, order: dict[str, object], files: list[int]) -> None:
        rank = str(order.get("rank", ""))
        if order["do"] == "start" and not self._leaving:
            self._start(rank, files)
        elif order["do"] == "signal":
            for pid, name in self._ranks.items():
                if name == rank:
                    send = os.killpg if order["group"] else os.kill
                    with contextlib.suppress(OSError):  # it has just ended
                        send(pid, int(str(order["signal"])))
        elif order["do"] == "noted":
            self._ended.pop(rank, None)
        elif order["do"] == "lease":
            self._lease_ends = float(str(order["ends"]))
        elif order["do"] == "see":
            self._see(json.loads(str(order["folders"])))

    def _see(self, folders: list[tuple[str, int, int]]) -> None:
        """End, if the agent has made a folder again since it was mounted: a new pod has it."""
        for path, device, inode in folders:
            try:
                found = os.stat(path)  # noqa: PTH116 -- pathlib costs as much as the rest
            except OSError:
                found = None
            if found is None or (found.st_dev, found.st_ino) != (device, inode):
                self._say(f"{path} is not the agent's folder any more")
                self._kill_all()
                os._exit(STALE_EXIT)
        self._tell({"sees": True})

    def _start(self, rank: str, files: list[int]) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                become(*files)
            finally:
                os._exit(126)
        self._ranks[pid] = rank
        self._say(f"rank {rank} started")

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid in self._ranks:  # others are orphans
                    rank = self._ranks.pop(pid)
                    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else status >> 8
                    self._ended[rank] = code
                    self._tell({"ended": rank, "code": code})
                    self._say(f"rank {rank} ended with {code}")

    def _kill_all(self) -> None:
        for pid in self._ranks:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        if os.getpid() == 1:
            with contextlib.suppress(OSError):
                os.kill(-1, signal.SIGKILL)

    @staticmethod
    def _say(text: str) -> None:
        with contextlib.suppress(OSError):
            sys.stdout.write(f"gangline: {text}\n")
            sys.stdout.flush()


def become(program: int, stdout: int, stderr: int, gate: int) -> None:
    """Be the rank, once the agent has opened the gate. Ends with 127 or 126 if it cannot."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for name in _DEFAULT:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o077)
    os.write(gate, b"r")
    if not os.read(gate, 1):
        os._exit(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.lseek(program, 0, os.SEEK_SET)
    with os.fdopen(os.dup(program), "rb") as file:
        wanted = json.load(file)
    os.closerange(3, 256)
    own = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_PASSED_ON)}
    if wanted.get("alone"):
        own = {}
    command, folder = wanted["command"], wanted["folder"]
    try:
        if folder:
            os.chdir(folder)
        environment = {**own, **wanted["environment"]}
        os.execvpe(command[0], command, environment)  # noqa: S606 -- the job's own command
    except FileNotFoundError:
        problem, code = f"command not found: {command[0]}", 127
    except OSError as error:
        problem, code = f"cannot run {command[0]}: {error.strerror}", 126
    os.write(2, f"gangline: {problem}\n".encode())
    os._exit(code)


def install(target: str, path: str) -> None:
    """Copy this file, and tell the agent that the pod came to its node: an image may follow."""
    with open(__file__, "rb") as source, open(target, "wb") as file:  # noqa: PTH123
        file.write(source.read())
    ends = time.monotonic() + INSTALL_S
    while time.monotonic() < ends:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as agent:
            try:
                agent.connect(path)
                agent.send(json.dumps({"here": True}).encode())
            except OSError:
                time.sleep(AGAIN_S)
            else:
                return


if __name__ == "__main__":
    if sys.argv[1] == "install":
        install(*sys.argv[2:])
    else:
        lives = Host(sys.argv[2], float(sys.argv[3]), ends_with_lease=sys.argv[1] == "room")
        sys.exit(lives.run())
