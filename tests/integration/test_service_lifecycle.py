"""Real processes: orderly stop, crash, forced exit, and what they leave behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SECRET = "correct-horse-battery"
TOKEN = "hf_" + "a1B2" * 9
DEADLINE_S = 30

PROGRAM = """
import fcntl, os, signal, sys, termios, threading, time
from gangline_service.lifecycle import Context, Restart, run
from gangline_service.settings import ServiceSettings

def orderly(context):
    context.health.set("bus", True)
    while not context.stopping.wait(0.01):
        context.health.beat()

def crash(context):
    threading.Thread(target=time.sleep, args=(3600,)).start()  # must not hold the process
    token = "{token}"
    raise RuntimeError(f"broker said {secret} to {{token}}")

def crash_in_thread(context):
    threading.Thread(target=crash, args=(context,), name="poller").start()
    context.stopping.wait()

def stubborn(context):
    context.stopping.wait()
    print("stopping", flush=True)
    time.sleep(3600)

def forking(context):
    child = os.fork()
    if child == 0:
        time.sleep(3600)
    print(child, flush=True)
    os.waitpid(child, 0)
    return 4 if context.stopping.is_set() else 3

def hangups(context):
    child = os.fork()
    if child == 0:
        os._exit(signal.getsignal(signal.SIGHUP) != signal.SIG_IGN)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def code(context):
    return 7

def stopped_at_last(*given, execve=os.execve):
    line = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(line, warn_on_full_buffer=False)
    os.kill(os.getpid(), signal.SIGTERM)  # another thread takes it: here it is blocked
    for _ in range(1000):
        if any(fcntl.ioctl(line, termios.TIOCOUTQ, bytes(4))):  # not read from there yet
            break
        time.sleep(0.001)
    execve(*given)

def anew(context):
    kept = int(os.environ.get("KEPT", "-1"))
    if kept < 0:
        print(os.getpid(), flush=True)
        told, kept = os.pipe()
        lost = os.open("/dev/null", os.O_RDONLY)
        os.set_inheritable(lost, True)  # as those of C libraries are
        os.write(kept, b"words of the first life")
        context.restarting.wait()
        if "stopped meanwhile" in sys.argv:
            os.kill(os.getpid(), signal.SIGTERM)
            context.stopping.wait()
        if "stopped at last" in sys.argv:
            os.execve = stopped_at_last
        if "wrongly" in sys.argv:
            return Restart(environment=dict(WRONG=chr(0)))
        return Restart(frozenset({{told}}), {{"KEPT": str(told), "LOST": str(lost)}})
    print(os.getpid(), os.read(kept, 100).decode(), flush=True)
    lost = "/proc/self/fd/" + os.environ["LOST"]  # the number may be somebody else's by now
    assert os.path.realpath(lost) != "/dev/null"
    context.stopping.wait()

if sys.argv[1] == "hangups":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
run("quota", ServiceSettings.load(), globals()[sys.argv[1]], restarts=sys.argv[1] == "anew")
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **variables: str) -> subprocess.Popen[str]:
        kafka = json.dumps({"sasl.password": SECRET})
        kept = {k: v for k, v in os.environ.items() if not k.startswith("GANGLINE_")}
        program = PROGRAM.format(token=TOKEN, secret=SECRET)
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            env={
                **kept,
                "GANGLINE_HEALTH_FILE": str(tmp_path / "quota.json"),
                "GANGLINE_KAFKA": kafka,
                **variables,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=DEADLINE_S)


def _line_of(process: subprocess.Popen[str], event: str) -> dict[str, object]:
    """Read stderr up to the line with this event; ends with the process."""
    assert process.stderr is not None
    for line in process.stderr:
        record: dict[str, object] = json.loads(line)
        if record["event"] == event:
            return record
    pytest.fail(f"the process ended without {event}")


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
        body: bytes = answer.read()
    return body


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_in_order(
    number: signal.Signals, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = start("orderly")
    started = _line_of(process, "service.started")
    address = json.loads((tmp_path / "quota.json").read_text())
    assert address["pid"] == process.pid
    assert address["url"] == started["health"]
    assert json.loads(_get(address["url"] + "/healthz"))["status"] == "ok"
    assert b"process_cpu_seconds_total" in _get(address["url"] + "/metrics")
    process.send_signal(number)
    _, rest = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    events = [json.loads(line)["event"] for line in rest.splitlines()]
    assert events == ["service.stopping", "service.stopped"]
    assert not (tmp_path / "quota.json").exists()


@pytest.mark.parametrize("main", ["crash", "crash_in_thread"])
def test_exception_is_logged_once_without_secrets(
    main: str, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = start(main)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    crashes = [json.loads(line) for line in err.splitlines() if "service.crashed" in line]
    assert len(crashes) == 1
    assert "RuntimeError: broker said [redacted] to [redacted]" in crashes[0]["exception"]
    assert SECRET not in out + err
    assert TOKEN not in out + err
    assert not (tmp_path / "quota.json").exists()


def test_code_of_main_is_the_exit_code(start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start("code")
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 7


def test_second_signal_forces_the_exit(start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start("stubborn", GANGLINE_STOP_GRACE_S="3600")
    _line_of(process, "service.started")
    process.terminate()
    assert process.stdout is not None
    assert process.stdout.readline() == "stopping\n"
    process.terminate()
    assert "second signal" in str(_line_of(process, "service.forced_exit")["reason"])
    assert process.wait(DEADLINE_S) == 1


def test_grace_period_forces_the_exit(start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start("stubborn", GANGLINE_STOP_GRACE_S="0.05")
    _line_of(process, "service.started")
    process.terminate()
    assert "grace period" in str(_line_of(process, "service.forced_exit")["reason"])
    assert process.wait(DEADLINE_S) == 1


def test_signal_of_a_forked_child_does_not_stop_its_parent(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    process = start("forking")
    assert process.stdout is not None
    os.kill(int(process.stdout.readline()), signal.SIGTERM)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 3


def test_a_forked_child_ignores_hangups_as_its_parent_does(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    process = start("hangups")
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0


def test_a_hangup_begins_the_program_anew_in_the_same_process(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = start("anew")
    assert process.stdout is not None
    assert process.stdout.readline() == f"{process.pid}\n"
    process.send_signal(signal.SIGHUP)
    assert process.stdout.readline() == f"{process.pid} words of the first life\n"
    address = json.loads((tmp_path / "quota.json").read_text())
    assert json.loads(_get(address["url"] + "/healthz"))["status"] == "ok"
    process.terminate()
    assert process.wait(DEADLINE_S) == 0


@pytest.mark.parametrize("when", ["meanwhile", "at last"])
def test_a_stop_that_comes_while_it_begins_anew_is_heeded_then(
    when: str, start: Callable[..., subprocess.Popen[str]]
) -> None:
    process = start("anew", f"stopped {when}")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    assert process.stdout.readline() == f"{process.pid} words of the first life\n"
    assert process.wait(DEADLINE_S) == 0


def test_a_program_that_cannot_begin_anew_ends(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = start("anew", "wrongly")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    assert "null byte" in str(_line_of(process, "service.crashed")["exception"])
    assert process.wait(DEADLINE_S) == 1
    assert not (tmp_path / "quota.json").exists()


def test_port_in_use_names_the_way_out(start: Callable[..., subprocess.Popen[str]]) -> None:
    first = start("orderly")
    port = str(_line_of(first, "service.started")["health"]).rpartition(":")[2]
    second = start("orderly", GANGLINE_HEALTH_PORT=port, GANGLINE_HEALTH_FILE="")
    _, err = second.communicate(timeout=DEADLINE_S)
    assert second.returncode == 1
    assert "GANGLINE_HEALTH_PORT" in err
    assert "Traceback" not in err


def test_wrong_settings_exit_with_usage(start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start("orderly", GANGLINE_HEALTH_PORT="many")
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    assert "GANGLINE_HEALTH_PORT" in err
