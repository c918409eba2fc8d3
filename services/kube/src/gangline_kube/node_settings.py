"""`python -m gangline_kube.node_settings`: writes the settings of this node's agent, and ends.

The first container of an agent's pod. It reads the node's labels, which no container is given.
"""

from __future__ import annotations

import sys
import time
import tomllib
from pathlib import Path
from typing import ClassVar

from gangline_kube.core.agent_settings import agent_settings, merged_settings
from gangline_kube.core.resource import NODES
from gangline_kube.service.api import Cluster, KubeError, Unavailable
from gangline_kube.service.config import words
from gangline_service.settings import ServiceSettings
from gangline_service.toml_text import toml_text

WAIT_S = 120.0


class NodeSettingsSettings(ServiceSettings):
    """Settings as GANGLINE_ variables or in the table [node_settings]."""

    section: ClassVar[str] = "node_settings"

    kubeconfig: Path | None = None
    """How the API server is reached; None: by the pod's service account, else the user's file."""
    kube_node: str
    """The node's name in Kubernetes."""
    kube_base: Path | None = None
    """A settings file, whose shared keys and table [agent] the new one takes over."""
    kube_target: Path
    """The file that is written."""
    kube_rack_label: str = "topology.kubernetes.io/rack"
    """The label of the node's rack."""
    kube_block_label: str = "topology.kubernetes.io/zone"
    """The label of its block, which has several racks."""
    kube_labels: str = "nvidia.com/gpu.product,nvidia.com/gpu.family,node.kubernetes.io/*"
    """Labels, by commas and with wildcards, that jobs can choose nodes by."""
    kube_pool: str = ""
    """The agent's pool, which jobs can choose as the label gangline.dev/pool."""


def main(settings: NodeSettingsSettings) -> None:
    """Read the node and write the file. An API server that is away is waited for."""
    api, deadline = Cluster(settings.kubeconfig), time.monotonic() + WAIT_S
    while True:
        try:
            node = api.get(NODES, settings.kube_node)
            break
        except Unavailable as error:
            if time.monotonic() > deadline:
                raise SystemExit(f"cannot read node {settings.kube_node}: {error}") from None
            time.sleep(max(0.5, error.retry_s))
        except KubeError as error:
            raise SystemExit(f"cannot read node {settings.kube_node}: {error}") from None
    base = tomllib.loads(settings.kube_base.read_text("utf-8")) if settings.kube_base else {}
    copied = words(settings.kube_labels)
    own = agent_settings(
        node, settings.kube_rack_label, settings.kube_block_label, copied, settings.kube_pool
    )
    settings.kube_target.write_text(toml_text(merged_settings(base, own)), encoding="utf-8")
    sys.stdout.write(f"{settings.kube_target}: node {own['node_id']}\n")


if __name__ == "__main__":
    main(NodeSettingsSettings.load())
