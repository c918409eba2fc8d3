"""Users and rights on Kafka: what a plan shows, without a cluster."""

from __future__ import annotations

import errno
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from gangline.commands.platform import _is_secure
from gangline.errors import CliError
from gangline.kafka.acls import Acl, plan_acls, wanted_acls
from gangline.kafka.principals import read_principals
from gangline.kafka.rights import Rights, read_rights
from gangline.kafka.users import UserFiles, rotate_users
from gangline.local.certificates import Authority
from gangline.local.kafka_access import embedded, own
from gangline.local.kafka_folders import admin_file, secure_folder
from gangline_service.kafka_file import write_kafka_file
from support.harnesses.cli_run import Runner, runner

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, UserScramCredentialUpsertion

OWNER = Rights(
    read=frozenset({"gangline.requests"}),
    write=frozenset({"gangline.quota"}),
    transactional_id="gangline.quota.",
    groups=("gangline.quota",),
    describe_groups=("gangline.scheduler",),
)


@pytest.fixture
def gangline(capsys: pytest.CaptureFixture[str]) -> Runner:
    return runner(capsys)


def lines(acls: object) -> list[str]:
    return sorted(str(acl) for acl in acls)  # type: ignore[attr-defined]


def test_a_row_gives_these_rights_and_no_more() -> None:
    assert lines(wanted_acls({"quota": OWNER}, "lab.")) == [
        "quota: Describe on group lab.gangline.scheduler",
        "quota: Describe on topic lab.gangline.*",
        "quota: Describe on transactional id lab.gangline.quota.*",
        "quota: Read on group lab.gangline.quota*",
        "quota: Read on topic lab.gangline.requests",
        "quota: Write on topic lab.gangline.quota",
        "quota: Write on transactional id lab.gangline.quota.*",
    ]


def test_parts_may_be_named_by_a_pattern() -> None:
    account = "system:serviceaccount:gangline:gangline-"
    named = read_principals(
        [f"{account}{{part}}", f"mlflow={account}gateway", f"mlflow=User:{account}registry"],
        read_rights(),
    )
    rights = read_rights()
    wanted = wanted_acls(rights, principals=named)
    theirs = {acl.principal for acl in wanted}
    assert theirs == {f"{account}{part}" for part in rights if part != "mlflow"}
    of_gateway = {acl for acl in wanted if acl.principal == f"{account}gateway"}
    both = wanted_acls({part: rights[part] for part in ("gateway", "mlflow")})
    assert of_gateway == {acl._replace(principal=f"{account}gateway") for acl in both}
    assert wanted_acls(rights, principals=read_principals([], rights)) == wanted_acls(rights)


def test_two_patterns_give_both_names_the_rights() -> None:
    named = read_principals(["{part}", "User:sa-{part}"], ["quota"])
    assert {acl.principal for acl in wanted_acls({"quota": OWNER}, principals=named)} == {
        "quota", "sa-quota",
    }  # fmt: skip


def test_a_name_with_an_equals_sign_is_a_pattern_and_a_part_s_own_name_is_not() -> None:
    named = read_principals(["CN={part},O=lab", "quota=sa-{part}"], ["quota", "scheduler"])
    assert (named.of("quota"), named.of("scheduler")) == (("sa-quota",), ("CN=scheduler,O=lab",))


@pytest.mark.parametrize("option", ["gangline", "nobody=x", "quota="])
def test_a_principal_of_no_part_is_refused(option: str) -> None:
    with pytest.raises(CliError, match="neither a pattern") as error:
        read_principals([option], ["quota"])
    assert "quota" in str(error.value.hint)


def test_nothing_differs_once_all_is_there() -> None:
    wanted = wanted_acls(read_rights())
    assert not plan_acls(wanted, wanted).changes
    assert set(plan_acls(wanted, []).missing) == wanted


def test_a_right_too_many_and_a_foreign_writer_are_shown() -> None:
    wanted = wanted_acls(read_rights())
    surplus = Acl("tracker", "WRITE", "TOPIC", "gangline.requests", "LITERAL")
    foreign = [
        Acl("eve", "WRITE", "TOPIC", "gangline.quota", "LITERAL"),
        Acl("eve", "ALL", "TOPIC", "*", "LITERAL"),
        Acl("eve", "WRITE", "TOPIC", "gang", "PREFIXED"),
    ]
    harmless = [
        Acl("eve", "READ", "TOPIC", "gangline.quota", "LITERAL"),
        Acl("eve", "WRITE", "TOPIC", "sales", "LITERAL"),
        Acl("eve", "WRITE", "TOPIC", "gangline.requests", "LITERAL"),
    ]
    plan = plan_acls(wanted, [*wanted, surplus, *foreign, *harmless])
    assert (plan.missing, plan.extra) == ((), (surplus,))
    assert set(plan.foreign) == set(foreign)


def test_another_installation_keeps_its_rights() -> None:
    rights = read_rights()
    here, there, plain = (wanted_acls(rights, prefix) for prefix in ("a.", "b.", ""))
    assert not plan_acls(here, here | there | plain, "a.").changes
    assert not plan_acls(plain, here | plain).changes
    surplus = Acl("tracker", "WRITE", "TOPIC", "b.gangline.requests", "LITERAL")
    assert plan_acls(here, [*here, surplus], "a.").extra == (surplus,)


def test_a_right_from_one_host_alone_is_not_the_right() -> None:
    (first, *_) = wanted = sorted(wanted_acls({"quota": OWNER}))
    plan = plan_acls(wanted, [*wanted[1:], first._replace(host="10.0.0.1")])
    assert plan.missing == (first,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[quota]\nread = ["steppes"]\nwrite = []\ngroups = []', "no topic gangline.steppes"),
        ("[quota]\nread = []\nwrite = []", "quota.groups"),
        ("quota = 1", "quota."),
        ("[quota", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "acls.toml"
    file.write_text(text)
    with pytest.raises(CliError, match=said):
        read_rights(file)


def test_files_of_users_are_private_and_name_the_authority(tmp_path: Path) -> None:
    admin = {"ssl.ca.location": "/ca.pem", "ssl.key.location": "/admin.pem"}
    files = UserFiles.beside(tmp_path / "users", admin)
    assert files.password("agent") is None
    files.write("agent", 'pass"word')
    assert files.password("agent") == 'pass"word'
    assert files.path("agent").stat().st_mode & 0o777 == 0o600
    assert files.folder.stat().st_mode & 0o777 == 0o700
    text = files.path("agent").read_text()
    assert "/ca.pem" in text
    assert "admin.pem" not in text


def test_a_folder_of_settings_has_a_file_for_each_part(tmp_path: Path) -> None:
    for name in ("up", "tracker"):
        (tmp_path / f"{name}.toml").write_text("")
    access = own("k:9092", tmp_path)
    assert access.file_of("tracker") == tmp_path / "tracker.toml"
    assert access.file_of("console") is None
    with pytest.raises(CliError, match=r"has no quota\.toml"):
        access.file_of("quota")


def test_a_platform_is_as_it_was_last(tmp_path: Path) -> None:
    folder = tmp_path / "kafka"
    assert not _is_secure(tmp_path, None, None, asked=None)
    secure_folder(folder).mkdir(parents=True)
    admin_file(folder).touch()
    assert _is_secure(tmp_path, None, None, asked=None)
    embedded(folder, secure=False)
    assert not _is_secure(tmp_path, None, None, asked=None)


class HalfAdmin:
    """A cluster that changes the first user, and fails for the others."""

    def alter_user_scram_credentials(
        self, changes: list[UserScramCredentialUpsertion], **_: object
    ) -> dict[str, Future[None]]:
        found: dict[str, Future[None]] = {change.user: Future() for change in changes}
        first, *others = found.values()
        first.set_result(None)
        for other in others:
            other.set_exception(KafkaException(KafkaError(KafkaError.NOT_CONTROLLER)))
        return found


def test_a_rotation_that_fails_keeps_the_passwords_that_kafka_has(tmp_path: Path) -> None:
    files = UserFiles.beside(tmp_path, {})
    for user in ("agent", "tracker"):
        files.write(user, "old")
    with pytest.raises(CliError, match="users cannot be changed") as failed:
        rotate_users(cast("AdminClient", HalfAdmin()), ["agent", "tracker", "quota"], files)
    assert "run the command again" in failed.value.hint
    assert files.password("agent") != "old"
    assert (files.password("tracker"), files.password("quota")) == ("old", None)


def test_a_full_disk_loses_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = UserFiles.beside(tmp_path, {})
    for user in ("agent", "tracker"):
        files.write(user, "old")

    def full(path: Path, settings: dict[str, str]) -> None:
        if path.name == "tracker.toml":
            raise OSError(errno.ENOSPC, "no space left on device")
        write_kafka_file(path, settings)

    monkeypatch.setattr("gangline.kafka.users.write_kafka_file", full)
    with pytest.raises(OSError, match="no space"):
        rotate_users(cast("AdminClient", HalfAdmin()), ["agent", "tracker", "quota"], files)
    assert [files.password(user) for user in ("agent", "tracker", "quota")] == ["old", "old", None]


def test_a_certificate_of_an_authority_that_is_gone_is_replaced(tmp_path: Path) -> None:
    first = Authority(tmp_path).keep("broker").read_bytes()
    (tmp_path / "ca-key.pem").unlink()
    assert Authority(tmp_path).keep("broker").read_bytes() != first


def test_a_certificate_is_replaced_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Authority(tmp_path).keep("broker").read_bytes()
    assert Authority(tmp_path).keep("broker").read_bytes() == first
    assert (tmp_path / "ca-key.pem").stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr("gangline.local.certificates.RENEW_DAYS", 365)
    assert Authority(tmp_path).keep("broker").read_bytes() != first


@pytest.mark.parametrize("command", ["users plan", "users apply", "acls plan", "renew"])
def test_without_a_secure_platform_the_way_out_is_named(
    gangline: Runner, tmp_path: Path, command: str
) -> None:
    ran = gangline("kafka", *command.split(), "--data-dir", str(tmp_path))
    assert ran.code == 2
    assert "gangline up --secure" in ran.err


def test_the_rights_can_be_printed(gangline: Runner) -> None:
    ran = gangline("kafka", "acls", "show")
    assert ran.code == 0
    assert "| submitter | " in ran.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--secure", "--kafka", "k:9092"], "embedded Kafka"),
        (["--kafka-settings", "x.toml"], "goes with --kafka"),
    ],
)
def test_options_that_do_not_go_together(
    gangline: Runner, tmp_path: Path, arguments: list[str], said: str
) -> None:
    ran = gangline("up", "--data-dir", str(tmp_path), *arguments)
    assert ran.code == 2
    assert said in ran.err
