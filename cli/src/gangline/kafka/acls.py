"""The ACLs of a Kafka cluster against the rights of the parts: what differs, and how it is set."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from gangline.kafka.connecting import ADMIN_TIMEOUT_S, admin_errors
from gangline.kafka.principals import NAMES, Principals
from gangline.kafka.rights import FAMILY, Rights
from gangline_schemas.catalog import catalog

BindingT = TypeVar("BindingT", AclBinding, AclBindingFilter)
_WRITES = frozenset({"WRITE", "ALL"})
_NAMES = "gangline"
"""How all names of acls.toml begin."""


class Acl(NamedTuple):
    """One right that is allowed. `pattern` is LITERAL or PREFIXED; `kind` is TOPIC, GROUP, ..."""

    principal: str
    operation: str
    kind: str
    name: str
    pattern: str
    host: str = "*"

    def __str__(self) -> str:
        star = "*" if self.pattern == "PREFIXED" else ""
        kind = self.kind.lower().replace("_", " ")
        return f"{self.principal}: {self.operation.capitalize()} on {kind} {self.name}{star}"


@dataclass(frozen=True, slots=True)
class AclPlan:
    """The differences. `extra`: rights of our principals that the file does not have.

    `foreign`: other principals that may write to a decision log. These are shown and never removed.
    """

    missing: tuple[Acl, ...]
    extra: tuple[Acl, ...]
    foreign: tuple[Acl, ...]

    @property
    def changes(self) -> bool:
        """Whether the cluster lacks something, or has too much."""
        return bool(self.missing or self.extra)


def wanted_acls(
    rights: Mapping[str, Rights], prefix: str = "", principals: Principals = NAMES
) -> frozenset[Acl]:
    """Every ACL of the principals. `prefix` is GANGLINE_TOPIC_PREFIX."""
    return frozenset(
        acl
        for part, own in rights.items()
        for principal in principals.of(part)
        for acl in _of(principal, own, prefix)
    )


def _of(principal: str, own: Rights, prefix: str) -> Iterator[Acl]:
    yield Acl(principal, "DESCRIBE", "TOPIC", f"{prefix}{FAMILY}", "PREFIXED")
    for operation, names in (("READ", own.read), ("WRITE", own.write)):
        for name in names:
            yield Acl(principal, operation, "TOPIC", f"{prefix}{name}", "LITERAL")
    if own.transactional_id is not None:
        for operation in ("WRITE", "DESCRIBE"):
            name = f"{prefix}{own.transactional_id}"
            yield Acl(principal, operation, "TRANSACTIONAL_ID", name, "PREFIXED")
    for name in own.groups:
        yield Acl(principal, "READ", "GROUP", f"{prefix}{name}", "PREFIXED")
    for name in own.describe_groups:
        yield Acl(principal, "DESCRIBE", "GROUP", f"{prefix}{name}", "LITERAL")


def plan_acls(wanted: Collection[Acl], found: Collection[Acl], prefix: str = "") -> AclPlan:
    """Compare. The same rights under another prefix are of another installation, not extra."""
    ours = {acl.principal for acl in wanted}
    rights = {_anywhere(acl) for acl in wanted}
    have = set(found)
    surplus = {acl for acl in have - set(wanted) if acl.principal in ours}
    logs = {f"{prefix}{topic.value}": e.owner for topic, e in catalog().items() if e.kind == "log"}
    return AclPlan(
        missing=tuple(sorted(set(wanted) - have)),
        extra=tuple(sorted(acl for acl in surplus if _anywhere(acl) not in rights)),
        foreign=tuple(
            sorted(acl for acl in have if acl.principal not in ours and _writes_to(acl, logs))
        ),
    )


def _anywhere(acl: Acl) -> Acl:
    """The right without the prefix of its installation."""
    at = acl.name.rfind(_NAMES)
    return acl if at < 0 else acl._replace(name=acl.name[at:])


def _writes_to(acl: Acl, logs: Iterable[str]) -> bool:
    if acl.kind != "TOPIC" or acl.operation not in _WRITES:
        return False
    if acl.pattern == "PREFIXED":
        return any(log.startswith(acl.name) for log in logs)
    return acl.name == "*" or acl.name in logs


def found_acls(admin: AdminClient) -> list[Acl]:
    """Every right that the cluster allows. Raises CliError."""
    everything = AclBindingFilter(
        ResourceType.ANY,
        None,  # type: ignore[arg-type]
        ResourcePatternType.ANY,
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    with admin_errors("the ACLs cannot be read"):
        bindings = admin.describe_acls(everything, request_timeout=ADMIN_TIMEOUT_S)
        return [
            Acl(
                binding.principal.removeprefix("User:"),
                binding.operation.name,
                binding.restype.name,
                binding.name,
                binding.resource_pattern_type.name,
                binding.host,
            )
            for binding in bindings.result(ADMIN_TIMEOUT_S)
            if binding.permission_type is AclPermissionType.ALLOW
        ]


def apply_acls(admin: AdminClient, plan: AclPlan, *, prune: bool) -> None:
    """Create what is missing and, with `prune`, delete what is extra. Raises CliError."""
    with admin_errors("the ACLs cannot be changed"):
        if plan.missing:
            bindings = [_native(AclBinding, acl) for acl in plan.missing]
            _wait(admin.create_acls(bindings, request_timeout=ADMIN_TIMEOUT_S))
        if prune and plan.extra:
            filters = [_native(AclBindingFilter, acl) for acl in plan.extra]
            _wait(admin.delete_acls(filters, request_timeout=ADMIN_TIMEOUT_S))


def _wait(futures: Mapping[Any, Future[Any]]) -> None:
    for future in futures.values():
        future.result(ADMIN_TIMEOUT_S)


def _native(kind: type[BindingT], acl: Acl) -> BindingT:
    return kind(
        ResourceType[acl.kind],
        acl.name,
        ResourcePatternType[acl.pattern],
        f"User:{acl.principal}",
        acl.host,
        AclOperation[acl.operation],
        AclPermissionType.ALLOW,
    )
