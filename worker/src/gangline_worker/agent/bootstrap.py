"""Makes the parts of an agent as its settings say."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from secrets import token_hex

from gangline_schemas.events.scheduling import NodeAssignment
from gangline_schemas.events.workers import NodeInfo
from gangline_schemas.isolation import Isolation
from gangline_service.job_tokens import SECRET_KEY
from gangline_storage.open import open_store
from gangline_storage.pace import Pace
from gangline_storage.port import ObjectStore
from gangline_storage.retry import Retry
from gangline_storage.s3_options import S3Options
from gangline_storage.shared_secret import SharedSecret

from .checkpoints.transfer import Checkpoints
from .config import AgentSettings
from .decide.inputs import NodeChecked
from .health.fitness import FitnessLimits
from .health.node_check_host import NodeCheckHost
from .health.source import HealthWatch, health_source
from .host.cdi import NVIDIA_GPU, Cdi, GivenDevices, folders_of
from .host.folders import Folders
from .host.inventory import Labels, gpu_names, take_inventory
from .images.gang_images import FOLDER as IMAGES
from .images.gang_images import GangImages, ImageOptions
from .images.registry import RegistryOptions
from .isolation.isolator import Isolator
from .peers.tier import PeerTier, open_peer_tier
from .peers.tls import PeerTls, peer_tls
from .runtime.containers import ENGINES, Containers
from .runtime.pod_hosts import PodHosts, PodWaits, kubectl_missing
from .usage.points import Capacity
from .usage.watch import UsageWatch
from .warm.process import WarmStart
from .warm.standby_host import StandbyPool
from .warm.zygote_host import ZygoteHost
from .workspace.mlflow import MlflowAccess

_UPLOADS_WAIT_S = 60.0  # for a store that is away, the parts that it has are not sent again


def peer_tier(settings: AgentSettings, data: Path) -> PeerTier | None:
    """None where the node gives no copies, or cannot listen for requests."""
    if not settings.peer_copies:
        return None
    return open_peer_tier(
        settings.node_id,
        settings.address,
        settings.peer_port,
        settings.peer_timeout_s,
        data,
        _peer_tls(settings),
    )


def _peer_tls(settings: AgentSettings) -> PeerTls | None:
    """How agents prove themselves to each other; None: by keyed hashes alone."""
    cert, key, ca = settings.peer_tls_cert, settings.peer_tls_key, settings.peer_ca_file
    if cert is None or key is None or ca is None:
        return None
    try:
        return peer_tls(cert, key, ca)
    except OSError as error:
        raise SystemExit(
            f"GANGLINE_PEER_TLS_CERT, GANGLINE_PEER_TLS_KEY and GANGLINE_PEER_CA_FILE cannot be "
            f"used ({error.strerror or error}): name PEM files that this process can read"
        ) from None


def inventory(
    settings: AgentSettings,
    ports: tuple[int, ...],
    isolator: Isolator,
    peers: PeerTier | None,
    no_images: str | None,
) -> NodeInfo:
    """The node, as a new incarnation. Raises DriverUnusable."""
    node = take_inventory(
        Labels(
            settings.node_id,
            token_hex(8),
            settings.address,
            settings.rack,
            settings.block,
            settings.node_labels,
        ),
        slots=settings.slots,
        ports=ports,
        cpus=settings.cpus,
        memory_gb=settings.memory_gb,
    )
    level, in_pods = isolator.level, settings.ranks_in_pods
    if in_pods and level.strength >= Isolation.USER.strength:
        level = Isolation.LIMITS  # a pod has namespaces and limits of its own
    known: dict[str, object] = {
        "isolation": level,
        "runs_images": in_pods or no_images is None,
    }
    if peers is not None:
        known["copies_port"] = peers.port
    return node.model_copy(update=known)


def gpus_of(node: NodeInfo) -> tuple[int, ...]:
    """The indexes of the GPUs that NVML knows; () on a node with CPU slots."""
    return tuple(gpu.index for gpu in node.gpus if gpu.model != "cpu")


def health_watch(settings: AgentSettings, data: Path, node: NodeInfo) -> HealthWatch:
    """Not started."""
    source = partial(health_source, settings.health_script, settings.node_id, data)
    return HealthWatch(source, settings.health_interval_s, gpus_of(node))


def usage_watch(settings: AgentSettings, data: Path, node: NodeInfo) -> UsageWatch | None:
    """Not started; None where system metrics are off."""
    if not settings.system_metrics_s:
        return None
    has = Capacity(node.node_id, float(len(os.sched_getaffinity(0))))  # it may offer others
    return UsageWatch(data, has, gpus_of(node), settings.system_metrics_s)


def node_checks(
    settings: AgentSettings,
    folders: Folders,
    watch: HealthWatch,
    done: Callable[[NodeChecked], None],
    node: NodeInfo,
) -> NodeCheckHost | None:
    """None where the node joins unchecked."""
    level, gpus = settings.node_check, gpus_of(node)
    if level == "off":
        return None
    if level == "auto":
        level = "full" if gpus else "light"
    limits = FitnessLimits(settings.disk_free_gb, settings.memory_free_gb, settings.clock_error_s)
    return NodeCheckHost(level, folders, limits, watch, done, gpus)


def warm_start(settings: AgentSettings, sockets: Path, node: NodeInfo) -> WarmStart | None:
    """None where all ranks start cold. By default none is forked where a GPU's driver is."""
    how = "off" if settings.ranks_in_pods else settings.warm_start
    if how == "auto":
        how = "standby" if gpus_of(node) else "fork"
    if how == "off":
        return None
    if how == "fork":
        return ZygoteHost(sockets)
    return StandbyPool(sockets, settings.standbys or len(node.gpus) or 1)


def mlflow_access(settings: AgentSettings, store: ObjectStore) -> MlflowAccess | None:
    """None where jobs get no variables of MLflow."""
    uri = settings.mlflow_tracking_uri
    if uri is None:
        return None
    return MlflowAccess(uri, SharedSecret(store, SECRET_KEY), settings.mlflow_ca_file)


def pod_hosts(settings: AgentSettings, sockets: Path) -> PodHosts | None:
    """None where ranks run below the agent."""
    if not settings.ranks_in_pods:
        return None
    waits = PodWaits(settings.pod_bind_s, settings.pod_start_s)
    own = settings.pod_network == "pod"
    missing = kubectl_missing(settings.node_id, waits)
    return PodHosts(sockets, waits, missing, own_network=own)


def containers(settings: AgentSettings, folders: Folders) -> Containers | None:
    """None where gangs with images do not run in containers of an engine."""
    engine = ENGINES.get(settings.image_runtime)
    if engine is None:
        return None
    place = folders.data / IMAGES / "root"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Containers(engine(place), folders.sockets, settings.lease, settings.isolation_processes)


def no_images(containers: Containers | None, isolator: Isolator) -> str | None:
    """Why this node runs no images; None: it does."""
    if containers is None:
        return isolator.no_images
    lacking = containers.lacking(isolator.trial_owner)
    return None if lacking is None else f"GANGLINE_IMAGE_RUNTIME={containers.engine}: {lacking}"


def gang_devices(
    settings: AgentSettings, node: NodeInfo
) -> Callable[[NodeAssignment], GivenDevices | None]:
    """Gives the devices of a gang in an image; it raises CdiError."""
    cdi, known = Cdi(folders_of(settings.cdi_folders)), gpus_of(node)

    def given(assignment: NodeAssignment) -> GivenDevices | None:
        return cdi.devices(NVIDIA_GPU, [gpu_names(gpu) for gpu in assignment.gpus if gpu in known])

    return given


def images(
    settings: AgentSettings, folders: Folders, store: ObjectStore, lacking: str | None
) -> GangImages:
    """Those that gangs of this node run in; `lacking`: why it can run none."""
    options = ImageOptions(
        int(settings.images_gb * 1e9),
        RegistryOptions(settings.images_mirror, _hosts(settings.images_plain_http)),
        settings.images_auth_file,
        _hosts(settings.images_registries),
    )
    return GangImages(folders.data, folders.secrets, store, options, lacking)


def _hosts(text: str) -> frozenset[str]:
    return frozenset(filter(None, text.replace(" ", "").split(",")))


def checkpoints(settings: AgentSettings, data: Path, store: ObjectStore) -> Checkpoints:
    """Those that go from this node to the store, and back."""
    limit = settings.upload_mb_per_s
    return Checkpoints(
        data / "checkpoints",
        store,
        node_id=settings.node_id,
        link=settings.link_uploads,
        pace=Pace(limit * 1e6) if limit is not None else None,
        uploads=open_store(
            settings.store_url, options=S3Options(retry=Retry.within(_UPLOADS_WAIT_S))
        ),
    )
