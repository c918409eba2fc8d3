"""`gangline kafka`: users, rights and certificates of the parts on Kafka.

Without options the commands work on the local platform that `gangline up --secure` runs; with
--settings on any cluster. No command shows a password.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gangline.errors import CliError, ExitCode
from gangline.local.client import default_data_dir
from gangline.local.kafka_folders import admin_file, secure_folder, users_folder
from gangline.output import Output
from gangline.session import DataDir, Json, Target, target_of, with_options

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from gangline.kafka.acls import AclPlan
    from gangline.kafka.rights import Rights
    from gangline.kafka.users import UserFiles

Kafka = Annotated[
    str | None, typer.Option(help="HOST:PORT of Kafka, if the settings do not name it.")
]
Settings = Annotated[
    Path | None,
    typer.Option(help="TOML file of librdkafka's settings of Kafka's administrator."),
]
Folder = Annotated[
    Path | None, typer.Option("--users", help="Folder of the files NAME.toml, one for each user.")
]
File = Annotated[
    Path | None, typer.Option("--file", help="Another acls.toml than that of this release.")
]
Prefix = Annotated[str, typer.Option("--prefix", help="As GANGLINE_TOPIC_PREFIX.")]
Principal = Annotated[
    list[str] | None,
    typer.Option(
        "--principal",
        help="How parts are named on Kafka: a pattern with {part}, or PART=NAME. Repeatable.",
    ),
]
Prune = Annotated[
    bool, typer.Option("--prune", help="Also remove rights that the file does not have.")
]


@dataclass(frozen=True)
class _Cluster:
    """A cluster that has let its administrator in, and the folder of users' files."""

    admin: AdminClient
    files: UserFiles


@dataclass(frozen=True)
class _Admin:
    """The options that all commands about a cluster share."""

    out: Output
    local: Path
    kafka: str | None
    settings: Path | None
    file: Path | None

    @property
    def rights(self) -> dict[str, Rights]:
        """Of `file`, or of this release. Raises CliError."""
        from gangline.kafka.rights import read_rights

        return read_rights(self.file)

    def connect(self, users: Path | None = None) -> _Cluster:
        """Connect as the administrator; `users` is the folder of files. Raises CliError."""
        from gangline.kafka.connecting import connect_admin
        from gangline.kafka.users import UserFiles

        own = self.admin()
        default = users_folder(self.local) if self.settings is None else Path("kafka-users")
        return _Cluster(connect_admin(own), UserFiles.beside((users or default).resolve(), own))

    def admin(self) -> dict[str, str]:
        """Librdkafka's settings of the administrator. Raises CliError."""
        from gangline.kafka.connecting import read_settings

        file = self.settings or admin_file(self.local)
        plain = self.settings is None and not file.exists()
        if plain and self.kafka is None:
            raise _not_secure(self.local)
        own = {} if plain else read_settings(file)
        if self.kafka is not None:
            own["bootstrap.servers"] = self.kafka
        if not own.get("bootstrap.servers"):
            raise CliError("no address of Kafka", "give --kafka HOST:PORT", ExitCode.USAGE)
        return own


def _asks_cluster(body: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function whose first parameter is _Admin, with the shared options."""

    @functools.wraps(body)
    def command(
        context: typer.Context,
        *,
        kafka: str | None,
        settings: Path | None,
        file: Path | None,
        data_dir: Path | None,
        json: bool,
        **options: object,
    ) -> None:
        target = target_of(context, data_dir=data_dir, json=json)
        out = Output(json=target.json)
        body(_Admin(out, _kafka_dir(target), kafka, settings, file), **options)

    shared = {
        "kafka": Kafka, "settings": Settings, "file": File, "data_dir": DataDir, "json": Json,
    }  # fmt: skip
    return with_options(command, body, shared)


@_asks_cluster
def users_plan(asked: _Admin, users: Folder = None) -> None:
    """Show which users are missing. Exit code 101: some are."""
    from gangline.kafka.users import plan_users

    cluster = asked.connect(users)
    plan = plan_users(cluster.admin, asked.rights, cluster.files)
    lines = [f"+ {user}" for user in plan.create]
    lines += [f"? {user}: its password is not in {cluster.files.folder}" for user in plan.unknown]
    lines.append(f"{len(plan.create)} to create, {len(plan.same)} as wanted")
    asked.out.show(plan, "\n".join(lines))
    if plan.changes:
        raise SystemExit(ExitCode.NOT_FINISHED)


@_asks_cluster
def users_apply(asked: _Admin, users: Folder = None) -> None:
    """Create missing users, with their files. Passwords of users that exist stay."""
    from gangline.kafka.users import create_users, plan_users

    cluster = asked.connect(users)
    plan = plan_users(cluster.admin, asked.rights, cluster.files)
    create_users(cluster.admin, plan.create, cluster.files)
    lines = [f"+ {user}: {cluster.files.path(user)}" for user in plan.create]
    asked.out.show(plan, "\n".join([*lines, f"{len(plan.create)} users created"]))
    if plan.unknown:
        asked.out.note(
            f"no file for {', '.join(plan.unknown)}: `gangline kafka users rotate NAME` gives a "
            "user a new password"
        )


@_asks_cluster
def users_rotate(
    asked: _Admin,
    names: Annotated[list[str], typer.Argument(help="Users, or `all`.", metavar="NAME...")],
    users: Folder = None,
) -> None:
    """Give users new passwords, in Kafka and in their files. Parts that run read them again."""
    from gangline.kafka.users import rotate_users

    known = asked.rights
    unknown = [name for name in names if name not in known and name != "all"]
    if unknown:
        raise CliError(
            f"no part is named {unknown[0]}", f"one of {', '.join(known)}, or all", ExitCode.USAGE
        )
    wanted = list(known) if "all" in names else names
    cluster = asked.connect(users)
    rotate_users(cluster.admin, wanted, cluster.files)
    lines = [f"~ {user}: {cluster.files.path(user)}" for user in wanted]
    lines.append(f"{len(wanted)} users have a new password")
    asked.out.show({"rotated": wanted}, "\n".join(lines))


@_asks_cluster
def topics(asked: _Admin, prefix: Prefix = "") -> None:
    """Create the topics that are missing. Those that exist stay as they are."""
    from gangline.kafka.connecting import connect_admin
    from gangline.local.kafka_access import make_topics

    own = asked.admin()
    before = set(connect_admin(own).list_topics(timeout=10).topics)
    names = [topic.name for topic in make_topics(own, prefix)]
    made = [name for name in names if name not in before]
    lines = [f"+ {name}" for name in made]
    asked.out.show({"created": made}, "\n".join([*lines, f"{len(made)} of {len(names)} created"]))


@_asks_cluster
def acls_plan(asked: _Admin, prefix: Prefix = "", principal: Principal = None) -> None:
    """Show how the cluster's rights differ from acls.toml. Exit code 101: they do."""
    _, plan = _acl_plan(asked, prefix, principal)
    _show(asked.out, plan, "to create", "to remove with --prune")
    if plan.changes:
        raise SystemExit(ExitCode.NOT_FINISHED)


@_asks_cluster
def acls_apply(
    asked: _Admin, prefix: Prefix = "", principal: Principal = None, prune: Prune = False
) -> None:
    """Create the rights of acls.toml that are missing. Applied twice, nothing changes."""
    from gangline.kafka.acls import apply_acls

    cluster, plan = _acl_plan(asked, prefix, principal)
    apply_acls(cluster.admin, plan, prune=prune)
    _show(asked.out, plan, "created", "removed" if prune else "left: --prune removes them")


def acls_show(context: typer.Context, file: File = None, json: Json = False) -> None:
    """Print acls.toml as a table in Markdown. No cluster is asked."""
    from gangline.kafka.rights import read_rights, table

    rights = read_rights(file)
    Output(json=target_of(context, json=json).json).show(rights, table(rights).rstrip())


def renew(context: typer.Context, data_dir: DataDir = None) -> None:
    """Give the local platform's Kafka a new certificate, while it runs. Clients stay connected."""
    from gangline.local.kafka_renewal import renew_broker

    folder = _kafka_dir(target_of(context, data_dir=data_dir))
    if not admin_file(folder).exists():
        raise _not_secure(folder)
    renew_broker(folder)
    out = Output()
    out.show(None, f"{secure_folder(folder) / 'broker.pem'} is new, and Kafka uses it")


def _kafka_dir(target: Target) -> Path:
    return (target.data_dir or default_data_dir()) / "kafka"


def _not_secure(folder: Path) -> CliError:
    return CliError(
        f"{folder.parent} has no secure Kafka",
        "start it with `gangline up --secure`, or give --settings for another cluster",
        ExitCode.USAGE,
    )


def _acl_plan(asked: _Admin, prefix: str, principal: list[str] | None) -> tuple[_Cluster, AclPlan]:
    from gangline.kafka.acls import found_acls, plan_acls, wanted_acls
    from gangline.kafka.principals import read_principals

    rights = asked.rights
    named = read_principals(principal or [], rights)
    cluster = asked.connect()
    wanted = wanted_acls(rights, prefix, named)
    return cluster, plan_acls(wanted, found_acls(cluster.admin), prefix)


def _show(out: Output, plan: AclPlan, created: str, removed: str) -> None:
    lines = [f"+ {acl}" for acl in plan.missing]
    lines += [f"- {acl}" for acl in plan.extra]
    lines += [f"! {acl}, and the log has an owner" for acl in plan.foreign]
    lines.append(f"{len(plan.missing)} {created}, {len(plan.extra)} {removed}")
    out.show(plan, "\n".join(lines))
