"""Logs that stay bounded, a lock that names its holder, ports that stay free."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gangline.local import leftovers
from gangline.local.log_file import LogFile
from gangline.local.ports import is_free, keep_port, pick_ports
from gangline.local.process_model import SupervisorError
from gangline_worker.agent.rendezvous.ports import FIRST_PORT


def test_a_log_that_grew_is_set_aside_while_its_writer_goes_on(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "a.log", max_bytes=10)
    writer = log.open_to_append()
    for number in range(5):
        os.write(writer, f"line {number} is long enough\n".encode())
        log.bound()
    os.write(writer, b"last\n")
    os.close(writer)
    assert log.path.read_text() == "last\n"
    assert {path.name for path in tmp_path.iterdir()} == {"a.log", "a.log.1", "a.log.2"}
    assert (tmp_path / "a.log.1").read_text() == "line 4 is long enough\n"
    assert log.path.stat().st_mode & 0o077 == 0


def test_a_new_run_begins_a_new_log_and_keeps_the_last(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "a.log")
    log.path.write_text("earlier\n")
    log.begin()
    assert log.tail() == ""
    assert (tmp_path / "a.log.1").read_text() == "earlier\n"


def test_the_tail_is_the_last_lines(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "a.log")
    log.path.write_text("".join(f"{n}\n" for n in range(100_000)))
    assert log.tail(2) == "99998\n99999"


def test_a_second_owner_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    first = leftovers.DataDirLock(tmp_path)
    first.acquire()
    with pytest.raises(SupervisorError, match=f"in use by a running platform .pid {os.getpid()}"):
        leftovers.DataDirLock(tmp_path).acquire()
    first.release()
    second = leftovers.DataDirLock(tmp_path)
    second.acquire()
    second.release()


def test_picked_ports_are_free_and_not_lent_to_clients() -> None:
    ports = pick_ports(5)
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert len(set(ports)) == 5
    assert all(is_free(port) for port in ports)
    assert not any(low <= port <= high for port in ports)
    assert all(port < FIRST_PORT for port in pick_ports(50)), "node agents may take these"


def test_a_picked_port_is_not_picked_again_by_another_process() -> None:
    (taken,) = pick_ports(1)
    assert keep_port(taken), "it is this process's"
    code = f"""
from gangline.local import ports
drawn = iter([{taken}, {taken} + 1, {taken} + 2, {taken} + 3])
ports.secrets.randbelow = lambda _: next(drawn) - 12_000
print(ports.pick_ports(1)[0])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(ran.stdout) in range(taken + 1, taken + 4)


def test_a_port_with_a_listener_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not is_free(server.getsockname()[1])
