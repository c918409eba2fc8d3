"""Settings of the node agent: GANGLINE_ variables, the [agent] table, the command line."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from gangline_schemas.base import Identifier
from gangline_schemas.isolation import Isolation
from gangline_schemas.job_pods import user_range
from gangline_schemas.limits import Labels
from gangline_service.settings import ServiceSettings

from .health.notices import Provider
from .host.addresses import default_address
from .host.cdi import FOLDERS
from .host.inventory import node_name
from .runtime.lease_guard import SLACK_S

_LEASE_SHARE = 0.75
_LEASE_MOST = 0.8


class AgentSettings(ServiceSettings):
    """The settings of a node agent."""

    section: ClassVar[str] = "agent"

    node_id: Identifier = Field(default_factory=lambda: node_name(socket.gethostname()))
    """Unique in the cluster, the same over restarts."""
    data_dir: Path = Path(".gangline/agent")
    """Work, spool and checkpoint copies of this node; one agent each."""
    store_url: str = Field(default="", validate_default=True)
    """The object store (file:///path or s3://bucket/prefix?endpoint=...)."""
    link_uploads: bool = False
    """Hard-link shards into a store on the same file system instead of copying them."""
    upload_mb_per_s: Annotated[float, Field(gt=0)] | None = None
    """The most bandwidth to the store that this node's checkpoints take; none: no limit."""
    secrets_dir: Path | None = None
    """Secrets as files <team>/<NAME>, 0600; default: `secrets` in the data folder."""
    mlflow_tracking_uri: Annotated[str, Field(pattern=r"^https?://")] | None = None
    """The gateway's /mlflow as ranks reach it; none: jobs get no variables of MLflow."""
    mlflow_ca_file: Path | None = None
    """The authority of the gateway's certificate, which each gang gets; none: the system's."""
    slots: Annotated[int, Field(ge=0, le=1024)] | None = None
    """Offer so many CPU slots instead of GPUs; 0: none, for jobs without GPUs alone."""
    cpus: Annotated[float, Field(ge=0.001, le=1e6)] | None = None
    """Offer so many CPUs; default: those that the agent may use."""
    memory_gb: Annotated[float, Field(ge=0.001, le=1e9)] | None = None
    """Offer so many GB of memory; default: what the machine has."""
    address: str = Field(default_factory=default_address)
    """Where ranks on other nodes reach this one; its rendezvous listen there alone. Default: the
    source address of the default route, loopback where there is none."""
    rank_env_file: Path | None = None
    """NAME=VALUE lines: variables of all ranks here, below those of their jobs."""
    peer_copies: bool = True
    """Give agents of a gang the checkpoint that it starts from, and ask them before the store.

    Agents also confirm to each other which connections to a rendezvous come from their ranks.
    """
    peer_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Where they are answered, at `address`; 0 takes a free one, the last one's again if it can."""
    peer_timeout_s: Annotated[float, Field(gt=0, le=60)] = 3.0
    """A peer that says nothing for so long is left alone."""
    peer_tls_cert: Path | None = None
    """Agents ask each other over TLS by this certificate, which names `address`, and its key."""
    peer_tls_key: Path | None = None
    peer_ca_file: Path | None = None
    """The authority that signed the certificates of all agents."""
    rack: str = "rack-0"
    block: str = "block-0"
    node_labels: Labels = Field(default_factory=dict)
    """Labels of this node, for `node_labels` of jobs; JSON in the environment. Also its domain at
    levels of the scheduler's own, such as nvlink."""
    warm_start: Literal["auto", "fork", "standby", "off"] = "auto"
    """Ranks come of a process that has torch imported (400 MB): forked from one (fork), or each of
    one that waits for it (standby); auto: standby on GPUs, fork elsewhere."""
    standbys: Annotated[int, Field(ge=1, le=1024)] | None = None
    """How many wait; default: one for each GPU or slot."""
    isolation: Literal["auto"] | Isolation = "auto"
    """How ranks are kept apart: the strongest level that works here (auto), or just this one."""
    ranks_in_pods: bool = False
    """Ranks run in pods of their jobs, which `gangline_kube.pods` makes, not below the agent. The
    agent's own pod needs hostPID, and `data_dir` at most 28 characters."""
    pod_bind_s: Annotated[float, Field(gt=0, le=600)] = 10.0
    """An attempt fails if a pod of the gang did not come to this node by then: others took it."""
    pod_network: Literal["node", "pod"] = "node"
    """Whose network pods have; the maker of pods has the same as `kube_pods_network`."""
    pod_start_s: Annotated[float, Field(gt=0, le=86400)] = 900.0
    """So long a pod's image may take to be there, and to start."""
    isolation_uids: str = "1900000000-1900999999"
    """FIRST-LAST: user ids for teams, which nothing else on the machine may use."""
    isolation_processes: Annotated[int, Field(ge=64)] = 8192
    """Processes and threads that a team may have on this node, where it has its own user."""
    rendezvous_ports: str | None = None
    """FIRST-LAST; default: 64 free ports below the ephemeral range."""
    heartbeat_interval_s: Annotated[float, Field(gt=0, le=60)] = 1.0
    """At most a sixth of the timeout, else silent nodes are found late (concepts/faults.md).
    Give the fault manager the same value: it finds hangs by heartbeats of the last 3 intervals."""
    heartbeat_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """After this silence the fault manager counts the node as failed: set both alike."""
    lease_s: Annotated[float, Field(gt=0)] | None = None
    """Ranks are killed without an acknowledged heartbeat for so long; default 0.75 of timeout.
    More than the interval, at most 0.8 of the timeout: else ranks live on while others take their
    job. The rest is for heartbeats that the fault manager misses (its policy/silence.py)."""
    image_runtime: Literal["agent", "podman", "apptainer"] = "agent"
    """Which program makes the root of a gang with an image: the agent, podman (4.0 or later), or
    apptainer (1.4 or later). The last two need no agent that is root."""
    images_gb: Annotated[float, Field(gt=0, le=1e6)] = 50.0
    """Disk for unpacked container images; those that no gang uses are deleted first."""
    images_auth_file: Path | None = None
    """Logins for registries, for all teams, like Docker's config.json ("auths")."""
    images_registries: str = ""
    """The registries that jobs may name, by commas (docker.io,ghcr.io); empty: any."""
    images_mirror: Annotated[str, Field(pattern=r"^https?://")] | None = None
    """The URL of a registry that is asked in place of docker.io."""
    images_plain_http: str = ""
    """HOST[:PORT] of registries without TLS, by commas; none is needed for this machine."""
    cdi_folders: str = FOLDERS
    """Where the files of CDI are, by commas: a gang in an image gets its GPUs as one of them says.
    Without one for nvidia.com/gpu, and if this is empty, it gets all GPUs of the node."""
    spool_limit_mb: Annotated[int, Field(ge=8)] = 512
    """Disk for logs and metrics while the bus is away; the oldest go first."""
    stop_grace_s: Annotated[float, Field(gt=0)] = 18.0
    notice_provider: Provider = "none"
    """Whose notices that this machine will go are heeded: aws, gcp, azure or none."""
    notice_url: Annotated[str, Field(pattern=r"^https?://")] | None = None
    """Where its metadata service is; default: the provider's link-local address."""
    notice_interval_s: Annotated[float, Field(gt=0, le=60)] = 2.0
    """How often it is asked."""
    health_interval_s: Annotated[float, Field(gt=0, le=600)] = 10.0
    """How often the node's health is read."""
    system_metrics_s: Annotated[float, Field(ge=0, le=3600)] = 30.0
    """How often the use of CPU, memory, disk, network and GPUs is read, of each job and of the
    node; 0: never."""
    node_check: Literal["auto", "off", "light", "full"] = "auto"
    """Before it joins: the CPU and the disk (light), GPUs and an all-reduce too (full: on GPUs)."""
    check_again_s: Annotated[float, Field(gt=0)] = 30.0
    """A node that failed its check is checked again after so long."""
    disk_free_gb: Annotated[float, Field(ge=0)] = 1.0
    """A node with less space in `data_dir` does not join; set it as the fault manager's,"""
    memory_free_gb: Annotated[float, Field(ge=0)] = 0.5
    """nor one with less memory,"""
    clock_error_s: Annotated[float, Field(gt=0)] = 1.0
    """nor one whose clock may be further off."""
    health_script: Path | None = None
    """For tests: a JSON file to read the node's health from, or a folder with <node_id>.json."""

    @field_validator("store_url")
    @classmethod
    def _store_is_named(cls, value: str) -> str:
        if not value:
            raise ValueError("must name the object store, for example file:///var/lib/gangline")
        return value

    @field_validator("rendezvous_ports")
    @classmethod
    def _ports_are_a_range(cls, value: str | None) -> str | None:
        if value is not None:
            found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", value)
            if found is None or not 1024 <= int(found[1]) <= int(found[2]) <= 65535:
                raise ValueError("must be FIRST-LAST, for example 21000-21063, from 1024 on")
        return value

    @field_validator("isolation_uids")
    @classmethod
    def _uids_are_a_range(cls, value: str) -> str:
        user_range(value)
        return value

    @model_validator(mode="after")
    def _peers_prove_themselves(self) -> Self:
        given = [
            one is not None for one in (self.peer_tls_cert, self.peer_tls_key, self.peer_ca_file)
        ]
        if any(given) and not all(given):
            raise ValueError("set peer_tls_cert, peer_tls_key and peer_ca_file, or none of them")
        return self

    @model_validator(mode="after")
    def _lease_ends_in_time(self) -> Self:
        most_s = _LEASE_MOST * self.heartbeat_timeout_s
        if not self.heartbeat_interval_s < self.lease <= most_s:
            raise ValueError(
                f"lease_s ({self.lease:g}) must be more than heartbeat_interval_s "
                f"({self.heartbeat_interval_s:g}) and at most {_LEASE_MOST} of heartbeat_timeout_s "
                f"({most_s:g}): ranks of a node that is cut off must be gone "
                "before their job starts elsewhere; leave lease_s out for 0.75 of the timeout"
            )
        return self

    @model_validator(mode="after")
    def _one_place_for_images(self) -> Self:
        if self.ranks_in_pods and self.image_runtime != "agent":
            raise ValueError(
                "image_runtime has no effect with ranks_in_pods: leave one of them out"
            )
        return self

    @property
    def uids(self) -> range:
        """The users for teams."""
        return user_range(self.isolation_uids)

    @property
    def ports(self) -> tuple[int, ...]:
        """The rendezvous ports that were given."""
        if self.rendezvous_ports is None:
            return ()
        first, last = self.rendezvous_ports.split("-")
        return tuple(range(int(first), int(last) + 1))

    @property
    def lease(self) -> float:
        """The lease in seconds."""
        return self.lease_s if self.lease_s is not None else _LEASE_SHARE * self.heartbeat_timeout_s

    @property
    def guard_slack_s(self) -> float:
        """So long after the lease an agent that stands still has its ranks killed: in time, too."""
        return min(SLACK_S, (self.heartbeat_timeout_s - self.lease) / 2)
