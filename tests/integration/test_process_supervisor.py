"""The supervisor with real processes: crashes, back-off, order, and nothing left behind."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from gangline.local.leftovers import MARK
from gangline.local.probe import answers_ok
from gangline.local.process_model import (
    BackOff,
    ProcessSpec,
    ProcessState,
    ProcessStatus,
    SupervisorError,
)
from gangline.local.processes import Supervisor
from support.harnesses.node import alive
from support.waiting import wait_until

DEADLINE_S = 120.0
FAST = BackOff(first_s=0.02, most_s=0.2)


def script(source: str, *args: object) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", source, *map(str, args)]


SLEEP = script("import time; time.sleep(600)")
# Ignores SIGTERM, and says so by a file.
STUBBORN = (
    "import pathlib, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
)
# A child of a child in a session of its own, whose pid goes to a file.
GRANDCHILD = (
    "import pathlib, subprocess, sys, time;"
    "p = subprocess.Popen([sys.executable, '-I', '-S', '-c', 'import time; time.sleep(600)'],"
    " start_new_session=True);"
    "f = pathlib.Path(sys.argv[1]); t = f.with_suffix('.new'); t.write_text(str(p.pid));"
    "t.replace(f); time.sleep(600)"
)
# A supervisor as a program: runs two processes until it is interrupted.
OWNER = """
import sys, threading
from pathlib import Path
from gangline.local.process_model import ProcessSpec
from gangline.local.processes import Supervisor
from gangline.local.stop_signals import stop_signals_interrupt

data_dir, argv = Path(sys.argv[1]), sys.argv[2:]
try:
    with stop_signals_interrupt(), Supervisor(data_dir) as supervisor:
        supervisor.start([ProcessSpec("one", argv), ProcessSpec("two", argv, depends_on=["one"])])
        supervisor.wait_ready(20)
        print(*[row.pid for row in supervisor.status()], flush=True)
        threading.Event().wait(600)
except KeyboardInterrupt:
    print("stopped", flush=True)
"""


def is_gone(pid: int) -> bool:
    return not alive(pid)


def row(supervisor: Supervisor, name: str) -> ProcessStatus:
    return next(status for status in supervisor.status() if status.name == name)


def running_pid(supervisor: Supervisor, name: str) -> int:
    pid = row(supervisor, name).pid
    assert pid is not None
    return pid


class Event(NamedTuple):
    """What a supervisor logs of a process."""

    kind: str
    name: str
    pid: int | None
    message: str


@pytest.fixture
def events() -> Iterator[list[Event]]:
    found: list[Event] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            assert isinstance(record.args, tuple)
            found.append(Event(*record.args))  # type: ignore[arg-type]

    log, handler = logging.getLogger("gangline.local.children"), Keep()
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    yield found
    log.removeHandler(handler)
    log.setLevel(logging.NOTSET)


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    with Supervisor(tmp_path, back_off=FAST) as running:
        yield running


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start OWNER over tmp_path; ended at the latest with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(argv: Sequence[str] = SLEEP) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(tmp_path), *argv],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def children_of(owner: subprocess.Popen[str]) -> list[int]:
    """Return the pids of the owner's two children, each having become its own program."""
    assert owner.stdout is not None
    pids = [int(pid) for pid in owner.stdout.readline().split()]
    assert len(pids) == 2
    cmdlines = [Path(f"/proc/{pid}/cmdline") for pid in pids]
    wait_until(
        "programs run", lambda: not any(b"_launch.py" in path.read_bytes() for path in cmdlines)
    )
    return pids


def test_what_is_killed_is_started_again(events: list[Event], supervisor: Supervisor) -> None:
    supervisor.start([ProcessSpec("a", SLEEP)])
    supervisor.wait_ready(DEADLINE_S)
    first = running_pid(supervisor, "a")
    os.kill(first, signal.SIGKILL)
    wait_until("one restart", lambda: row(supervisor, "a").restarts == 1)
    assert running_pid(supervisor, "a") != first
    story = ["started", "ready", "exited", "restarting", "started", "ready"]
    wait_until("the story in order", lambda: [event.kind for event in events] == story)
    assert events[2].message.startswith("killed by SIGKILL")


def test_a_crash_loop_is_given_up_on_with_its_log(
    events: list[Event], supervisor: Supervisor
) -> None:
    crash = script("import sys; print('no such setting: colour'); sys.exit(3)")
    supervisor.start([ProcessSpec("a", crash, ready=lambda: False)])
    with pytest.raises(SupervisorError, match="no such setting: colour") as raised:
        supervisor.wait_ready(DEADLINE_S)
    assert "exit code 3" in str(raised.value)
    waits = [event.message for event in events if event.kind == "restarting"]
    assert waits[:4] == ["again in 0.0 s", "again in 0.0 s", "again in 0.1 s", "again in 0.2 s"]


def test_a_program_that_does_not_exist_is_named(supervisor: Supervisor) -> None:
    supervisor.start([ProcessSpec("a", ["/no/such/program"], ready=lambda: False, restart="never")])
    with pytest.raises(SupervisorError, match="cannot run /no/such/program"):
        supervisor.wait_ready(DEADLINE_S)


def test_one_that_is_never_ready_is_named_with_the_time(supervisor: Supervisor) -> None:
    never = ProcessSpec("slow", SLEEP, ready=lambda: False)
    supervisor.start([never, ProcessSpec("next", SLEEP, depends_on=["slow"])])
    with pytest.raises(SupervisorError, match="process slow was not ready within 0 s"):
        supervisor.wait_ready(0.2)
    assert row(supervisor, "next").state is ProcessState.WAITING
    assert row(supervisor, "next").waiting_for == ("slow",)


def test_start_follows_and_stop_reverses_the_dependencies(
    events: list[Event], supervisor: Supervisor, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    supervisor.start(
        [
            ProcessSpec("last", SLEEP, depends_on=["middle"]),
            ProcessSpec("middle", SLEEP, depends_on=["first"]),
            ProcessSpec("first", SLEEP, ready=gate.exists),
        ]
    )
    wait_until("the first runs", lambda: row(supervisor, "first").pid)
    assert row(supervisor, "middle").pid is None
    gate.touch()
    supervisor.wait_ready(DEADLINE_S)
    supervisor.stop()
    assert [e.name for e in events if e.kind == "started"] == ["first", "middle", "last"]
    assert [e.name for e in events if e.kind == "exited"] == ["last", "middle", "first"]


def test_a_dependent_waits_to_come_back_until_its_dependency_has(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    supervisor.start(
        [
            ProcessSpec("broker", SLEEP, ready=gate.exists),
            ProcessSpec("service", SLEEP, depends_on=["broker"]),
        ]
    )
    supervisor.wait_ready(DEADLINE_S)
    gate.unlink()
    for name in ("broker", "service"):
        os.kill(running_pid(supervisor, name), signal.SIGKILL)
    wait_until("the broker runs again", lambda: row(supervisor, "broker").restarts == 1)
    wait_until(
        "the service waits", lambda: row(supervisor, "service").state is ProcessState.BACKING_OFF
    )
    gate.touch()
    supervisor.wait_ready(DEADLINE_S)
    assert row(supervisor, "service").restarts == 1


def test_a_url_shows_readiness(supervisor: Supervisor, tmp_path: Path) -> None:
    serve = (
        "import http.server, os, pathlib, sys\n"
        "s = http.server.HTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)\n"
        "f = pathlib.Path(sys.argv[1]); t = f.with_suffix('.new'); os.chdir(f.parent)\n"
        "t.write_text(str(s.server_port)); t.replace(f); s.serve_forever()"
    )
    port_file = tmp_path / "port"
    supervisor.start([ProcessSpec("server", script(serve, port_file))])
    wait_until("the server's port", port_file.exists)
    url = f"http://127.0.0.1:{port_file.read_text()}"
    supervisor.start(
        [
            ProcessSpec("good", SLEEP, ready=lambda: answers_ok(f"{url}/port")),
            ProcessSpec("bad", SLEEP, ready=lambda: answers_ok(f"{url}/missing")),
        ]
    )
    supervisor.wait_ready(DEADLINE_S, ["good"])
    assert not row(supervisor, "bad").ready


def test_one_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    with Supervisor(tmp_path) as supervisor:
        spec = ProcessSpec("a", script(STUBBORN, flag), ready=flag.exists, stop_grace_s=0.2)
        supervisor.start([spec])
        supervisor.wait_ready(DEADLINE_S)
        pid = running_pid(supervisor, "a")
    assert is_gone(pid)


def test_children_of_children_end_with_the_stop(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with Supervisor(tmp_path) as supervisor:
        supervisor.start([ProcessSpec("a", script(GRANDCHILD, pid_file), ready=pid_file.exists)])
        supervisor.wait_ready(DEADLINE_S)
        grandchild = int(pid_file.read_text())
        assert not is_gone(grandchild)
    wait_until("the child of the child ended", lambda: is_gone(grandchild))


def test_output_goes_to_a_private_log_and_the_environment_is_laid_over(tmp_path: Path) -> None:
    say = script("import os, sys; print(os.environ['COLOUR']); sys.stderr.write('and this\\n')")
    with Supervisor(tmp_path) as supervisor:
        supervisor.start([ProcessSpec("a", say, env={"COLOUR": "green"}, restart="never")])
        wait_until("it ended", lambda: row(supervisor, "a").state is ProcessState.EXITED)
    log = tmp_path / "logs" / "a.log"
    assert sorted(log.read_text().split("\n")) == ["", "and this", "green"]
    assert log.stat().st_mode & 0o077 == 0


def test_a_process_may_yield_to_the_others(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor:
        supervisor.start([ProcessSpec("decides", SLEEP), ProcessSpec("reads", SLEEP, niceness=5)])
        supervisor.wait_ready(DEADLINE_S)
        names = ("decides", "reads")
        decides, reads = (running_pid(supervisor, name) for name in names)
        wait_until("programs run", lambda: _niceness(reads) > _niceness(decides))
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert (_niceness(decides), _niceness(reads)) == (own, min(19, own + 5))


def _niceness(pid: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, pid)


def test_a_log_stays_bounded_while_its_process_writes(tmp_path: Path) -> None:
    chatty = script(
        "import sys\nfor n in range(20_000):\n    print(f'{n:099d}', flush=True)\n"
        "import time; time.sleep(600)"
    )
    with Supervisor(tmp_path, log_max_bytes=100_000) as supervisor:
        supervisor.start([ProcessSpec("a", chatty)])
        newest = tmp_path / "logs" / "a.log.1"
        wait_until(
            "the log was rotated",
            lambda: newest.exists() and (tmp_path / "logs" / "a.log").stat().st_size < 100_000,
        )
        kept = {path.name for path in newest.parent.iterdir()}
        assert kept <= {"a.log", "a.log.1", "a.log.2"}
        assert row(supervisor, "a").restarts == 0, "its process was left alone"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_everything_in_order(
    owner: Callable[..., subprocess.Popen[str]], number: signal.Signals
) -> None:
    process = owner()
    pids = children_of(process)
    process.send_signal(number)
    output, errors = process.communicate(timeout=DEADLINE_S)
    assert (output, errors) == ("stopped\n", "")
    assert all(is_gone(pid) for pid in pids)


def test_no_child_outlives_a_killed_supervisor(
    owner: Callable[..., subprocess.Popen[str]],
) -> None:
    process = owner()
    pids = children_of(process)
    assert not any(is_gone(pid) for pid in pids)
    process.kill()
    wait_until("the children died with it", lambda: all(is_gone(pid) for pid in pids))


def test_the_next_owner_ends_what_a_killed_one_left(
    events: list[Event],
    owner: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
) -> None:
    pid_file = tmp_path / "pid"
    process = owner(script(GRANDCHILD, pid_file))
    children_of(process)
    wait_until("the child of the child runs", pid_file.exists)
    process.kill()
    process.wait()
    grandchild = int(pid_file.read_text())
    assert not is_gone(grandchild)
    with Supervisor(tmp_path) as supervisor:
        assert supervisor.status() == []
        assert is_gone(grandchild)
    assert grandchild in [event.pid for event in events if event.kind == "leftover"]


def test_a_second_owner_is_refused_until_the_first_is_gone(
    owner: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = owner()
    pids = children_of(process)
    with pytest.raises(SupervisorError, match=rf"in use .* \(pid {process.pid}\)"):
        Supervisor(tmp_path).claim()
    assert not any(is_gone(pid) for pid in pids)
    process.kill()
    process.wait()
    with Supervisor(tmp_path) as supervisor:
        assert supervisor.status() == []


def test_a_process_of_another_directory_is_left_alone(events: list[Event], tmp_path: Path) -> None:
    foreign = subprocess.Popen(SLEEP, env={**os.environ, MARK: str(tmp_path / "other")})
    try:
        with Supervisor(tmp_path):
            assert foreign.poll() is None
        assert foreign.poll() is None
        assert events == []
    finally:
        foreign.kill()
        foreign.wait()
