"""The control plane of Kubernetes on loopback: etcd, API server, controllers and scheduler.

`with ControlPlane(program(), folder) as plane` starts all of them; `plane.cluster()` is a client of
its administrator. Nodes are those of `kube.kubelet`, or objects alone.

It differs from an installed cluster. The controller that judges nodes by their leases is off, so a
node is ready if its object says so. A pod gets no token of its account unless it asks for one. A
token file knows the administrator.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from gangline.local import _launch
from gangline.local.certificates import Authority
from gangline_kube.core.resource import Object, Resource
from gangline_kube.service.api import Cluster, KubeError

ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount", namespaced=True)
AUDIENCE = "https://kubernetes.default.svc"
START_S = 300.0
_LAUNCH = (sys.executable, "-I", "-S", _launch.__file__)
_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
        {"level": "None"},
    ],
}


class ControlPlane:
    """One control plane in `folder`. `audit` reads what accounts of services asked for."""

    def __init__(self, kube: Path, folder: Path) -> None:
        self._kube, self._folder = kube, folder
        self._token = secrets.token_urlsafe(24)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ending = ExitStack()
        self.kubeconfig = folder / "kubeconfig"
        self.start_s = 0.0
        """Seconds until the API server was ready."""

    def __enter__(self) -> Self:
        began = time.monotonic()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._authority = Authority(self._folder / "certificates")
        self._accounts = self._authority.issue("accounts")
        etcd, peer, self._port, *others = _free_ports(5)
        self.url = f"https://127.0.0.1:{self._port}"
        with ExitStack() as ending:
            ending.callback(self._end)
            self._start_etcd(f"http://127.0.0.1:{etcd}", f"http://127.0.0.1:{peer}")
            self._etcd = f"http://127.0.0.1:{etcd}"
            self._write_kubeconfig(self.kubeconfig, self._token)
            self.start_api()
            self.start_s = time.monotonic() - began
            for part, port in zip(("controllers", "scheduler"), others, strict=True):
                self._start_client(part, port)
            self._ending = ending.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def cluster(self) -> Cluster:
        """A client of the administrator."""
        return Cluster(self.kubeconfig)

    def account_kubeconfig(self, namespace: str, name: str, path: Path) -> Path:
        """A kubeconfig with a token of an account of services, valid for an hour."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [AUDIENCE], "expirationSeconds": 3600},
        }
        asked = self.cluster()._ask("POST", ACCOUNTS.path(namespace, name, "token"), body=body)
        self._write_kubeconfig(path, asked["status"]["token"])
        return path

    def audit(self, namespace: str, name: str) -> Iterator[Object]:
        """The requests of an account of services, as events of the audit log."""
        user = f"system:serviceaccount:{namespace}:{name}"
        text = (self._folder / "audit.log").read_text("utf-8")
        for line in text.splitlines()[: text.count("\n")]:  # the last one may be half written
            event: dict[str, Any] = json.loads(line)
            if event["user"]["username"] == user:
                yield event

    def memory_mb(self) -> dict[str, int]:
        """The resident memory of each process."""
        found = {}
        for part, process in self._processes.items():
            pages = int(Path(f"/proc/{process.pid}/statm").read_text("ascii").split()[1])
            found[part] = pages * 4096 // 2**20
        return found

    def _start(self, part: str, **flags: object) -> None:
        words = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
        with (self._folder / f"{part}.log").open("ab") as log:
            self._processes[part] = subprocess.Popen(
                [*_LAUNCH, str(os.getpid()), str(self._kube), part, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _start_etcd(self, client: str, peer: str) -> None:
        self._start(
            "etcd",
            data_dir=self._folder / "etcd",
            listen_client_urls=client,
            advertise_client_urls=client,
            listen_peer_urls=peer,
            initial_advertise_peer_urls=peer,
            initial_cluster=f"default={peer}",
            unsafe_no_fsync="true",
            log_level="warn",
        )

    def kill_api(self) -> None:
        """End the API server at once; its objects stay in etcd."""
        process = self._processes.pop("apiserver")
        process.kill()
        process.wait()

    def start_api(self) -> None:
        """Start the API server, and wait until it is ready. Raises RuntimeError."""
        tokens, policy = self._folder / "tokens.csv", self._folder / "audit.json"
        tokens.write_text(f'{self._token},admin,admin,"system:masters"\n', "utf-8")
        policy.write_text(json.dumps(_AUDIT), "utf-8")
        certificate = self._authority.keep("server")
        self._start(
            "apiserver",
            etcd_servers=self._etcd,
            bind_address="127.0.0.1",
            advertise_address="127.0.0.1",
            secure_port=self._port,
            tls_cert_file=certificate,
            tls_private_key_file=certificate,
            service_account_key_file=self._accounts,
            service_account_signing_key_file=self._accounts,
            service_account_issuer=AUDIENCE,
            token_auth_file=tokens,
            authorization_mode="RBAC",
            allow_privileged="true",
            disable_admission_plugins="ServiceAccount,TaintNodesByCondition",
            service_cluster_ip_range="10.96.0.0/16",
            endpoint_reconciler_type="none",
            audit_policy_file=policy,
            audit_log_path=self._folder / "audit.log",
            audit_log_mode="blocking",
        )
        self._wait_until_ready()

    def _start_client(self, part: str, port: int) -> None:
        more: dict[str, object] = {}
        if part == "controllers":
            more = {
                "controllers": "*,-node-lifecycle-controller,-node-ipam-controller",
                "service_account_private_key_file": self._accounts,
                "root_ca_file": self._authority.path,
            }
        certificate = self._authority.issue(part)
        self._start(
            part,
            kubeconfig=self.kubeconfig,
            leader_elect="false",
            bind_address="127.0.0.1",
            secure_port=port,
            tls_cert_file=certificate,
            tls_private_key_file=certificate,
            authentication_skip_lookup="true",
            **more,
        )

    def _wait_until_ready(self) -> None:
        client, deadline = self.cluster(), time.monotonic() + START_S
        while True:
            try:
                client._open("GET", "/readyz", {}, None, 5.0)
                return
            except KubeError as error:
                ended = [name for name, each in self._processes.items() if each.poll() is not None]
                if ended or time.monotonic() > deadline:
                    raise RuntimeError(f"{ended or error}: see {self._folder}/*.log") from None
            time.sleep(0.1)

    def _write_kubeconfig(self, path: Path, token: str) -> None:
        cluster = {"server": self.url, "certificate-authority": str(self._authority.path)}
        made = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(made), "utf-8")

    def _end(self) -> None:
        for process in self._processes.values():  # nothing of theirs is kept
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
