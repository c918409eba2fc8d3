"""The processes of a pod's containers on this machine, for the kubelet of tests.

Known of a container: command, args, workingDir, env (values and fields of the pod), volume mounts,
runAsUser and runAsGroup. Known volumes: emptyDir, hostPath, configMap, secret and image. A
container has its own mounts and process ids; the network is the machine's.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gangline_kube.core.resource import Object, Resource
from gangline_kube.service.api import Cluster
from kube import container

CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True)
SECRETS = Resource("", "v1", "secrets", "Secret", namespaced=True)
ADDRESS = "127.0.0.1"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class StartError(Exception):
    """A container cannot be started; `reason` is kubelet's word for it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass
class PodProcess:
    """The containers of one pod. `images`: the roots of images by name."""

    api: Cluster
    pod: Object
    images: Mapping[str, Path]
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def start(self, of: Object) -> subprocess.Popen[bytes]:
        """Start one container; its output goes to NAME.log in the folder. Raises StartError."""
        if of["image"] not in self.images:
            raise StartError("ErrImagePull", f"{of['image']}: not found")
        self.folder.mkdir(parents=True, exist_ok=True)
        root = self.folder / "roots" / of["name"]
        root.mkdir(parents=True, exist_ok=True)
        security = self.pod["spec"].get("securityContext", {}) | of.get("securityContext", {})
        order = {
            "root": str(root),
            "image": str(self.images[of["image"]]),
            "mounts": self._mounts(of),
            "folder": of.get("workingDir", "/"),
            "user": security.get("runAsUser"),
            "group": security.get("runAsGroup"),
            "command": [*of.get("command", []), *of.get("args", [])],
        }
        unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        with (self.folder / f"{of['name']}.log").open("ab") as log:
            return subprocess.Popen(
                [*unshare, sys.executable, "-I", container.__file__, json.dumps(order)],
                env=self._environment(of),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def log(self, name: str) -> str:
        """What a container wrote so far."""
        return (self.folder / f"{name}.log").read_text("utf-8", "replace")

    def _environment(self, of: Object) -> dict[str, str]:
        found = {"PATH": PATH, "HOME": "/", "HOSTNAME": self.pod["metadata"]["name"]}
        found |= self.environment
        for each in of.get("env", []):
            if "value" in each:
                found[each["name"]] = each["value"]
            elif "fieldRef" in each.get("valueFrom", {}):
                found[each["name"]] = self._field(each["valueFrom"]["fieldRef"]["fieldPath"])
        return found

    def _field(self, path: str) -> str:
        if path in {"status.podIP", "status.hostIP"}:
            return ADDRESS
        value: Any = self.pod
        for name in path.split("."):
            value = value[name]
        return str(value)

    def _mounts(self, of: Object) -> list[tuple[str, str, bool]]:
        volumes = {each["name"]: each for each in self.pod["spec"].get("volumes", [])}
        found = []
        for each in of.get("volumeMounts", []):
            source = self._volume(volumes[each["name"]])
            source /= each.get("subPath", "")
            found.append((str(source), each["mountPath"], each.get("readOnly", False)))
        return found

    def _volume(self, volume: Object) -> Path:
        target = self.folder / "volumes" / volume["name"]
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        if "image" in volume:
            reference = volume["image"]["reference"]
            if reference not in self.images:
                raise StartError("ErrImagePull", f"{reference}: not found")
            return self.images[reference]
        target.mkdir(parents=True, exist_ok=True)
        if "emptyDir" in volume:
            target.chmod(0o777)
            return target
        namespace = self.pod["metadata"]["namespace"]
        if "configMap" in volume:
            found = self.api.get(CONFIG_MAPS, volume["configMap"]["name"], namespace)
            files = {name: text.encode() for name, text in found.get("data", {}).items()}
        elif "secret" in volume:
            found = self.api.get(SECRETS, volume["secret"]["secretName"], namespace)
            files = {name: base64.b64decode(each) for name, each in found.get("data", {}).items()}
        else:
            raise StartError("CreateContainerConfigError", f"volume {volume['name']}: not known")
        for name, content in files.items():
            (target / name).write_bytes(content)
        return target
