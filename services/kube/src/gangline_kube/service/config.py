"""Settings of the processes that connect Gangline with Kubernetes."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from gangline_kube.core.claims import Claim, refuse_clashes
from gangline_kube.core.job_pod import PodRules
from gangline_kube.core.nodes import Rules
from gangline_kube.core.resource import KubeName
from gangline_schemas.base import Identifier
from gangline_schemas.job_pods import user_range
from gangline_service.settings import ServiceSettings


class KubeSettings(ServiceSettings):
    """Settings as GANGLINE_ variables or in the table [kube]."""

    section: ClassVar[str] = "kube"

    kubeconfig: Path | None = None
    """How the API server is reached; None: by the pod's service account, else the user's file."""
    kube_gateway_url: Annotated[str, Field(pattern=r"^https?://")]
    """The gateway."""
    kube_gateway_ca: Path | None = None
    """CA certificates that signed the gateway's; None: the system's."""
    kube_token: SecretStr
    """A token of the gateway, of the role admin: jobs of all teams, and drains of nodes."""


class OperatorSettings(KubeSettings):
    """Settings of the operator of TrainingJob objects."""

    kube_namespaces: str = ""
    """Namespaces whose objects count, by commas and with wildcards; empty: all."""
    kube_mirror_s: Annotated[float, Field(gt=0, le=60)] = 2.0
    """How often the states of jobs are written into their objects."""


class NodeSettings(KubeSettings):
    """Settings of the process that follows nodes."""

    kube_round_s: Annotated[float, Field(gt=0, le=60)] = 5.0
    """How often nodes are compared."""
    kube_conditions: str = "KernelDeadlock,ReadonlyFilesystem"
    """Node conditions, by commas and with wildcards, that drain a node when they are True."""
    kube_tolerated_taints: str = ""
    """Keys of NoExecute taints, by commas and with wildcards, that drain no node."""
    kube_gpu_resource: str = "nvidia.com/gpu"
    """Pods of others that ask for it keep new gangs off their node; empty: they do not."""
    kube_most_drained: Annotated[float, Field(ge=0, le=1)] = 0.5
    """The share of nodes that conditions may drain, at least one node."""

    def rules(self) -> Rules:
        """The rules of drains."""
        return Rules(
            conditions=words(self.kube_conditions),
            tolerated=words(self.kube_tolerated_taints),
            gpu_resource=self.kube_gpu_resource,
            most_drained=self.kube_most_drained,
        )


class PodSettings(KubeSettings):
    """Settings of the process that makes the pods of jobs. Agents have `ranks_in_pods`."""

    kube_pods_namespace: str = "gangline-jobs"
    """Where the pods are made; no other account may make pods there."""
    kube_pods_agent_image: str
    """The image of agents: its first process is copied into each pod."""
    kube_pods_image: str = ""
    """The image of jobs that name none; default: that of agents."""
    kube_pods_data: PurePosixPath = PurePosixPath("/var/lib/gangline")
    """`data_dir` of all agents."""
    kube_pods_uids: str = "1900000000-1900999999"
    """`isolation_uids` of all agents: each team's pods run as its user."""
    kube_pods_pull_secrets: str = ""
    """Secrets of the namespace for private images, by commas."""
    kube_pods_nodes: list[dict[str, str]] = Field(default_factory=list)
    """Labels of the nodes whose agents have `ranks_in_pods`: all of one entry. Empty: all nodes.
    JSON in the environment."""
    kube_pods_network: Literal["node", "pod"] = "node"
    """Whose network pods have: their node's, or one of their own, with a policy for each gang.
    Agents have the same as `pod_network`."""
    kube_pods_peers: list[dict[str, Any]] = Field(default_factory=list)
    """Peers, as in a NetworkPolicy, that pods with a network of their own reach, beside DNS and
    pods of their job; JSON in the environment. Empty: all but metadata services."""
    kube_pods_tolerations: list[dict[str, Any]] = Field(default_factory=list)
    """Tolerations of the pods, as in Kubernetes; JSON in the environment."""
    kube_pods_priority_classes: dict[Annotated[int, Field(ge=0, le=100)], KubeName] = Field(
        default_factory=dict
    )
    """PriorityClasses by priority: a job has the one of the lowest number that is not below its
    own priority. Above the highest number, and by default, it is the cluster's default class."""
    kube_pods_service_account: KubeName | None = None
    """The account of the pods, in their namespace; None: its default one. Pods get no token."""
    kube_pods_team_accounts: dict[Identifier, KubeName] = Field(default_factory=dict)
    """Accounts of single teams' pods, by team; JSON in the environment."""
    kube_pods_volumes: dict[Identifier, tuple[Claim, ...]] = Field(default_factory=dict)
    """Claims of the namespace that pods of a team mount, by team; JSON in the environment."""
    kube_pods_round_s: Annotated[float, Field(gt=0, le=60)] = 0.3
    """How often gangs and pods are compared."""
    kube_pods_bind_s: Annotated[float, Field(gt=0, le=600)] = 5.0
    """A gang whose pods are not all bound by then loses them, and is placed again."""
    kube_pods_keep_s: Annotated[float, Field(ge=0, le=86400)] = 30.0
    """So long pods wait for their job's next attempt, if no other gang has their node."""
    kube_gpu_resource: str = "nvidia.com/gpu"
    """The resource that pods ask for, one for each rank."""

    @field_validator("kube_pods_uids")
    @classmethod
    def _uids_are_a_range(cls, value: str) -> str:
        user_range(value)
        return value

    @field_validator("kube_pods_priority_classes")
    @classmethod
    def _classes_are_below_those_of_agents(cls, value: dict[int, str]) -> dict[int, str]:
        for number, name in value.items():
            if name.startswith("system-"):
                raise ValueError(f"{number}: {name} would outrank agents; name another class")
        return value

    @field_validator("kube_pods_volumes")
    @classmethod
    def _claims_of_a_team_do_not_meet(
        cls, value: dict[str, tuple[Claim, ...]], info: ValidationInfo
    ) -> dict[str, tuple[Claim, ...]]:
        if "kube_pods_data" not in info.data:  # it is refused itself
            return value
        for team, claims in value.items():
            try:
                refuse_clashes(claims, str(info.data["kube_pods_data"]))
            except ValueError as error:
                raise ValueError(f"{team}: {error}") from None
        return value

    def rules(self) -> PodRules:
        """How pods are made."""
        return PodRules(
            namespace=self.kube_pods_namespace,
            image=self.kube_pods_image or self.kube_pods_agent_image,
            agent_image=self.kube_pods_agent_image,
            data=str(self.kube_pods_data),
            uids=user_range(self.kube_pods_uids),
            gpu_resource=self.kube_gpu_resource,
            pull_secrets=words(self.kube_pods_pull_secrets),
            tolerations=tuple(self.kube_pods_tolerations),
            priority_classes=self.kube_pods_priority_classes,
            account=self.kube_pods_service_account,
            team_accounts=self.kube_pods_team_accounts,
            team_claims=self.kube_pods_volumes,
            nodes=tuple(self.kube_pods_nodes),
            own_network=self.kube_pods_network == "pod",
            peers=tuple(self.kube_pods_peers),
            bind_s=self.kube_pods_bind_s,
            keep_s=self.kube_pods_keep_s,
        )


def words(text: str) -> tuple[str, ...]:
    """The parts of a setting that lists them by commas."""
    return tuple(each.strip() for each in text.split(",") if each.strip())


def exact(names: tuple[str, ...]) -> bool:
    """Whether these are names, at least one, and none has wildcards."""
    return bool(names) and not any(set(each) & set("*?[!") for each in names)
