"""The processes beside Kubernetes, each as a process of its own, and TrainingJob objects."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from gangline_kube.core.resource import GROUP, NAMESPACES, TRAINING_JOBS, Object
from gangline_kube.service.api import Cluster
from gangline_kube.service.following import Followed
from support.clients.kube_objects import create, define_training_jobs, new_namespace

SPEC = {"team": "nlp", "run": "true", "resources": {"gpus": 1}}


class OperatorProcess:
    """`python -m gangline_kube.operator`, or another module; `kill` ends it at once."""

    def __init__(
        self,
        kubeconfig: Path,
        gateway_url: str,
        folder: Path,
        module: str = "gangline_kube.operator",
        **settings: str,
    ) -> None:
        self._module = module
        self._log = folder / f"{module}.log"
        self._environment = {
            **os.environ,
            "GANGLINE_KUBECONFIG": str(kubeconfig),
            "GANGLINE_KUBE_GATEWAY_URL": gateway_url,
            "GANGLINE_KUBE_TOKEN": "a-token",
            "GANGLINE_KUBE_MIRROR_S": "0.2",
            "GANGLINE_KUBE_ROUND_S": "0.2",
        } | settings

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self._module],
                env=self._environment,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)

    def words(self) -> str:
        """All that it wrote."""
        return self._log.read_text(encoding="utf-8")

    def wait(self, what: str, done: Callable[[], bool], limit_s: float = 200.0) -> None:
        """Until it is so. Fails with the process's last words."""
        deadline = time.monotonic() + limit_s
        while not done():
            words = self.words()[-4000:]
            assert self.process.poll() is None, words
            assert time.monotonic() < deadline, f"{what}\n{words}"
            time.sleep(0.05)


class TrainingJobs:
    """The TrainingJob objects of a namespace that may ask for the team nlp; "": a new one."""

    def __init__(self, api: Cluster, space: str = "") -> None:
        self._api = api
        define_training_jobs(api)
        notes = {f"{GROUP}/teams": "nlp"}
        if space:
            api.patch(NAMESPACES, space, {"metadata": {"annotations": notes}})
        self.space = space or new_namespace(api, annotations=notes)
        self._ended = threading.Event()
        self._followed = Followed(api, TRAINING_JOBS, self._ended, dict)

    def __enter__(self) -> Self:
        self._followed.start()
        assert self._followed.listed.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def create(self, name: str, **spec: Any) -> Object:
        """Create an object."""
        item = {
            "apiVersion": f"{GROUP}/v1",
            "kind": TRAINING_JOBS.kind,
            "metadata": {"name": name},
            "spec": {**SPEC, **spec},
        }
        return create(self._api, TRAINING_JOBS, item, self.space)

    def delete(self, name: str) -> None:
        """Delete an object, as `kubectl delete --wait=false`."""
        self._api._ask("DELETE", TRAINING_JOBS.path(self.space, name), body={})

    def change(self, name: str, **spec: Any) -> None:
        """Change fields of an object's spec."""
        self._api.patch(TRAINING_JOBS, name, {"spec": spec}, self.space)

    def statuses(self) -> dict[str, dict[str, Any]]:
        """The status of each object by its name, as a watch shows it."""
        return {
            item["metadata"]["name"]: item.get("status") or {}
            for item in self._followed.items()
            if item["metadata"]["namespace"] == self.space
        }

    def states(self) -> dict[str, str]:
        """The state that each object shows."""
        return {name: status.get("state", "") for name, status in self.statuses().items()}
