"""The local S3 server as a process: private, the same after a restart, never left behind."""

import http.client
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from gangline.local.process_model import SupervisorError
from gangline.local.s3proxy import S3Proxy


@pytest.fixture
def proxy(tmp_path: Path) -> S3Proxy:
    return S3Proxy(tmp_path / "s3 grüße")  # the path goes through a Java properties file


def test_is_on_loopback_private_and_the_same_again(proxy: S3Proxy) -> None:
    with proxy:
        first = proxy.settings
        assert proxy.pid is not None
        listening = [
            connection.laddr
            for connection in psutil.Process(proxy.pid).net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        ]
        assert [address.port for address in listening] == [first.port]
        assert listening[0].ip in ("127.0.0.1", "::ffff:127.0.0.1")
        for name in ("s3proxy.json", "s3proxy.properties", "logs/s3proxy.log"):
            assert stat.S_IMODE((proxy.data_dir / name).stat().st_mode) == 0o600
        assert stat.S_IMODE(proxy.data_dir.stat().st_mode) == 0o700
        command = " ".join(psutil.Process(proxy.pid).cmdline())
        assert first.secret_key not in command
        assert first.secret_key not in (proxy.data_dir / "logs" / "s3proxy.log").read_text()
        assert first.secret_key not in repr(first)

        connection = http.client.HTTPConnection("127.0.0.1", first.port, timeout=10)
        connection.request("GET", "/gangline")
        assert connection.getresponse().status == http.client.FORBIDDEN
        connection.close()
    with S3Proxy(proxy.data_dir) as again:
        assert again.settings == first


def test_takes_another_port_when_its_own_is_taken(proxy: S3Proxy) -> None:
    proxy.prepare()
    first = proxy.settings
    with socket.create_server(("127.0.0.1", first.port)):
        proxy.prepare()
        assert proxy.settings.port != first.port
        assert proxy.settings.secret_key == first.secret_key


def test_one_server_per_directory(proxy: S3Proxy) -> None:
    with proxy, pytest.raises(SupervisorError, match="in use"):
        S3Proxy(proxy.data_dir).start()


def test_dies_with_a_killed_parent(proxy: S3Proxy) -> None:
    script = """
import sys
from pathlib import Path
from gangline.local.s3proxy import S3Proxy
proxy = S3Proxy(Path(sys.argv[1]))
proxy.start()
print(proxy.pid, flush=True)
sys.stdin.read()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(proxy.data_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert parent.stdout is not None
        server = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
        parent.wait(10)
        _, alive = psutil.wait_procs([server], timeout=30)
        assert alive == []
    finally:
        parent.kill()
        parent.communicate()
    with proxy:  # and the directory is usable again
        assert proxy.pid != server.pid
        os.kill(proxy.pid or 0, 0)
