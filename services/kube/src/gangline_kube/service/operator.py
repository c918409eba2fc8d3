"""The operator's work for a TrainingJob object: submit, change the priority, cancel.

kopf calls these methods, each until it ends without TemporaryError, over restarts too. Each may
come twice: the gateway knows the object's uid, and a second cancel or priority changes nothing. It
decides nothing: quota admits or rejects the job, the scheduler places it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

import kopf

from gangline_kube.core.resource import GROUP, NAMESPACES, TRAINING_JOBS, Object
from gangline_kube.core.training_job import (
    FINALIZER,
    RefusedError,
    Wanted,
    check_team,
    ended,
    job_id_of,
    priority_of,
    refused_status,
    status_of,
    wanted,
)
from gangline_kube.service.api import ANSWER_S, CONNECT_S, SILENCE_S, WATCH_S, Cluster, KubeError
from gangline_kube.service.gateway import INVALID_ID, Away, Gateway, GatewayError

RETRY_S = 3.0
NAMESPACE_S = 10.0
"""So long an answer about a namespace's teams is used again."""
WORKERS = 16
UNKNOWN_TRIES = 3


class Operator:
    """The methods that kopf calls, in its threads."""

    def __init__(self, api: Cluster, gateway: Gateway) -> None:
        self._api, self._gateway = api, gateway
        self._namespaces: dict[str, tuple[float, Object]] = {}
        self._lock = threading.Lock()

    def submit(
        self,
        name: str,
        namespace: str | None,
        uid: str,
        spec: Mapping[str, Any],
        status: Mapping[str, Any],
        patch: kopf.Patch,
        **_: Any,
    ) -> None:
        """Submit the object's job, once for its uid, and show it. Raises TemporaryError."""
        if ended(status) or status.get("jobId"):
            return
        try:
            job = wanted(name, uid, spec)
            check_team(self._namespace(namespace or ""), job.spec.team)
            found = self._submitted(job)
        except RefusedError as refused:
            patch.status.update(refused_status(str(refused)))
            return
        except Away as away:
            raise kopf.TemporaryError(str(away), delay=RETRY_S) from None
        except GatewayError as refused:
            patch.status.update(refused_status(str(refused)))
            return
        patch.status.update(found)

    def prioritize(
        self,
        name: str,
        uid: str,
        spec: Mapping[str, Any],
        status: Mapping[str, Any],
        **_: Any,
    ) -> None:
        """Give the job the priority that the object has now. Raises TemporaryError."""
        if ended(status):
            return
        try:
            self._gateway.prioritize(job_id_of(name, str(spec.get("team")), uid), priority_of(spec))
        except Away as away:
            raise kopf.TemporaryError(str(away), delay=RETRY_S) from None
        except (RefusedError, GatewayError) as refused:
            raise kopf.PermanentError(str(refused)) from None

    def cancel(
        self,
        name: str,
        uid: str,
        spec: Mapping[str, Any],
        status: Mapping[str, Any],
        retry: int,
        **_: Any,
    ) -> None:
        """Cancel the job of an object that is being deleted. Raises TemporaryError.

        A job that the gateway does not know may have been submitted a moment ago, by a process that
        has ended: it is looked for again.
        """
        if ended(status):
            return
        try:
            job_id = job_id_of(name, str(spec.get("team")), uid)
            if not self._gateway.cancel(job_id) and retry < UNKNOWN_TRIES:
                raise kopf.TemporaryError(f"job {job_id} is not known yet", delay=1.0)
        except GatewayError as error:  # a refusal too, such as of the token: the job runs on
            if error.status == INVALID_ID:  # it was never submitted
                return
            raise kopf.TemporaryError(str(error), delay=RETRY_S) from None

    def _submitted(self, job: Wanted) -> Object:
        """The status of the job. Of an object that was changed since, the job as it is counts."""
        try:
            return status_of(self._gateway.submit(job.spec, job.key))
        except GatewayError as refused:
            known = self._gateway.job(job.job_id) if refused.status == 409 else None
            if known is None:
                raise
            return status_of(known)

    def _namespace(self, name: str) -> Object:
        now = time.monotonic()
        with self._lock:
            for old in [key for key, (at, _) in self._namespaces.items() if now - at > NAMESPACE_S]:
                del self._namespaces[old]
            known = self._namespaces.get(name)
        if known is not None:
            return known[1]
        try:
            found = self._api.get(NAMESPACES, name)
        except KubeError as error:
            raise kopf.TemporaryError(str(error), delay=RETRY_S) from None
        with self._lock:
            self._namespaces[name] = now, found
        return found


def registry_of(operator: Operator, cluster: Cluster) -> kopf.OperatorRegistry:
    """The registry for kopf: the operator's methods, and the credentials of the cluster."""
    registry = kopf.OperatorRegistry()

    def login(**_: Any) -> kopf.ConnectionInfo:
        """Called at the start, and again when the server refuses a token that has expired."""
        found = cluster.configuration
        header = found.get_api_key_with_prefix("BearerToken", alias="authorization") or ""
        return kopf.ConnectionInfo(
            server=found.host,
            ca_path=found.ssl_ca_cert,
            insecure=not found.verify_ssl,
            scheme="Bearer" if header else None,
            token=header.rpartition(" ")[2] or None,
            certificate_path=found.cert_file,
            private_key_path=found.key_file,
        )

    kopf.on.login(id="cluster", registry=registry)(login)
    of = (TRAINING_JOBS.group, TRAINING_JOBS.version, TRAINING_JOBS.plural)
    kopf.on.create(*of, id="submit", registry=registry)(operator.submit)
    kopf.on.resume(*of, id="submit", registry=registry)(operator.submit)
    changed = kopf.on.update(*of, id="priority", field="spec.priority", registry=registry)
    changed(operator.prioritize)
    kopf.on.delete(*of, id="cancel", registry=registry)(operator.cancel)
    return registry


class PriorityStorage(kopf.AnnotationsDiffBaseStorage):
    """Keeps the priority that was last given to the job: of a change only this one is heeded.

    The annotations of an object have 256 KB together. With a copy of the user's own annotations or
    of the spec, no change of a large object would be accepted any more.
    """

    def build(
        self,
        *,
        body: kopf.Body,
        extra_fields: Iterable[Any] | None = None,  # noqa: ARG002 -- of kopf's other storages
    ) -> kopf.BodyEssence:
        """The part of an object in which kopf looks for changes."""
        spec = body.get("spec") or {}
        return {"spec": {"priority": spec["priority"]}} if "priority" in spec else {}


def settings_of(*, scanning: bool) -> kopf.OperatorSettings:
    """Settings of kopf: our names, bounded waits (a watch may go silent), no copies of the spec.

    `scanning`: follow namespaces, which wildcards need, and definitions of kinds; it takes rights
    over both.
    """
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = not scanning
    settings.persistence.finalizer = FINALIZER
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = PriorityStorage(prefix=GROUP)
    settings.watching.server_timeout = WATCH_S
    settings.watching.client_timeout = SILENCE_S
    settings.watching.connect_timeout = CONNECT_S
    settings.networking.request_timeout = ANSWER_S
    settings.networking.connect_timeout = CONNECT_S
    settings.posting.enabled = False
    settings.execution.max_workers = WORKERS
    settings.execution.default_backoff = RETRY_S
    return settings
