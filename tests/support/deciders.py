"""All deciders, each once: tests that hold for every decider go through this list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gangline_alerts.core import snapshot as alerts
from gangline_alerts.core.decide import AlertDecider
from gangline_bus.decision import BaseDecider
from gangline_bus.state_json import DataclassCodec
from gangline_checkpoints.core import snapshot as checkpoints
from gangline_checkpoints.core.decide import CheckpointDecider
from gangline_faults.core import snapshot as faults
from gangline_faults.core.decide import FaultDecider
from gangline_pipelines.core import snapshot as pipelines
from gangline_pipelines.core.decide import PipelineDecider
from gangline_quota.core import snapshot as quota
from gangline_quota.core.decide import Quota
from gangline_registry.core import snapshot as registry
from gangline_registry.core.decide import RegistryDecider
from gangline_scheduler.core import snapshot as scheduler
from gangline_scheduler.core.decide import Scheduler
from gangline_studies.core import snapshot as studies
from gangline_studies.core.decide import StudyDecider


@dataclass(frozen=True, slots=True)
class Known:
    """A decider as production makes it, and how its state is kept and compared."""

    make: Callable[[], BaseDecider[Any, Any]]
    codec: Callable[[], DataclassCodec[Any]]
    fingerprint: Callable[[Any], str]


DECIDERS: dict[str, Known] = {
    "quota": Known(Quota, quota.codec, quota.fingerprint),
    "scheduler": Known(
        Scheduler, lambda: scheduler.codec(Scheduler().initial), scheduler.fingerprint
    ),
    "fault-manager": Known(FaultDecider, faults.codec, faults.fingerprint),
    "checkpoint-service": Known(CheckpointDecider, checkpoints.codec, checkpoints.fingerprint),
    "alerts": Known(AlertDecider, alerts.codec, alerts.fingerprint),
    "registry": Known(RegistryDecider, registry.codec, registry.fingerprint),
    "studies": Known(StudyDecider, studies.codec, studies.fingerprint),
    "pipelines": Known(PipelineDecider, pipelines.codec, pipelines.fingerprint),
}
"""By the name of the service, which owns the decision log of that entry of the catalog."""
