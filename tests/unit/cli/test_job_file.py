"""Job files: what is refused and how, overrides, and what a workdir's bundle holds."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from gangline import job_file
from gangline.errors import CliError, ExitCode
from gangline.job_file import Bundle, pack, read_job_file, read_overrides

GOOD = "name: a\nteam: t\nrun: 'true'\nresources: {gpus: 1}\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return path


def names(bundle: Bundle) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(bundle.data), mode="r:gz") as archive:
        return archive.getnames()


def fill(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: a\nteam: [", "at line 2: is not YAML"),
        ("- a\n- b\n", "must hold fields"),
        ("", "must hold fields"),
        (GOOD + "gpu: 1\n", "gpu: there is no such field"),
        (GOOD + "comand: [x]\n", "comand: there is no such field; did you mean command?"),
        (GOOD + "  run: x\n", "at line 5: is not YAML: expected <block end>"),
        (GOOD + "name: b\n", "at line 5: is not YAML: name is given twice"),
        (GOOD.replace("gpus: 1", "gpus: -1"), "resources.gpus: "),
        (GOOD.replace("name: a", "name: Not Good"), "name: "),
        (GOOD + "command: [x]\n", "exactly one of"),
        (GOOD + "env: {RANK: '1'}\n", "RANK is set by Gangline"),
        (GOOD + "env: {HF_TOKEN: x}\n", "looks like a secret"),
        (GOOD + "checkpoint: {path: ../other}\n", "checkpoint.path: "),
        (GOOD + "workdir: nowhere\n", "there is no folder nowhere"),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(CliError) as refused:
        read_job_file(written(tmp_path, text))
    assert said in refused.value.message
    assert refused.value.code is ExitCode.USAGE


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CliError, match="cannot read"):
        read_job_file(tmp_path / "none.yaml")


def test_a_refused_value_is_never_repeated(tmp_path: Path) -> None:
    secret = "hf_" + "x" * 34
    with pytest.raises(CliError) as refused:
        read_job_file(written(tmp_path, GOOD + f"env: {{A: {secret}}}\n"))
    assert secret not in refused.value.message


def test_the_restart_policy_reads_as_it_is_written(tmp_path: Path) -> None:
    spec = read_job_file(written(tmp_path, GOOD + "restart: {max: 1, on: [node]}\n")).spec
    assert [cause.value for cause in spec.restart.on] == ["node"]


def test_overrides_replace_inner_fields(tmp_path: Path) -> None:
    overrides = read_overrides(
        ["resources.gpus=4", "hyperparameters.lr=3e-4", "name=b", "preemptible=true"]
    )
    spec = read_job_file(written(tmp_path, GOOD), overrides).spec
    assert (spec.resources.gpus, spec.name, spec.preemptible) == (4, "b", True)
    assert spec.hyperparameters == {"lr": 3e-4}


@pytest.mark.parametrize(
    ("setting", "hint"),
    [("lr=3", "hyperparameters.lr=3"), ("name", "field=value"), ("=3", "field=value")],
)
def test_a_wrong_override_is_refused_with_the_way_out(setting: str, hint: str) -> None:
    with pytest.raises(CliError) as refused:
        read_overrides([setting])
    assert hint in refused.value.message + refused.value.hint
    assert refused.value.code is ExitCode.USAGE


def test_an_override_below_a_scalar_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CliError, match="name is no mapping"):
        read_job_file(written(tmp_path, GOOD), {"name.x": 1})


def test_a_bundle_leaves_out_what_gitignore_names(tmp_path: Path) -> None:
    folder = fill(
        tmp_path,
        {
            ".gitignore": "*.bin\n/data/\n!keep.bin\n",
            "train.py": "x", "big.bin": "x", "keep.bin": "x", "data/a.txt": "x",
            "src/data/b.txt": "x", "src/.gitignore": "/out\n*.tmp\n", "src/out/c": "x",
            "src/deep/out/d": "x", "src/deep/e.tmp": "x", "f.tmp": "x",
            ".git/config": "x", "__pycache__/t.pyc": "x", ".venv/bin/python": "x",
        },
    )  # fmt: skip
    assert names(pack(folder)) == [
        ".gitignore", "f.tmp", "keep.bin", "src/.gitignore", "src/data/b.txt", "src/deep/out/d",
        "train.py",
    ]  # fmt: skip


def test_a_gitignore_may_hold_what_is_no_pattern(tmp_path: Path) -> None:
    """As git does."""
    (tmp_path / ".gitignore").write_text("!\n\\\n[z-a]\n*.tmp\n")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / ".gitignore").mkdir()
    (tmp_path / "a.tmp").touch()
    (tmp_path / "b").touch()
    assert pack(tmp_path).files == 2


def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log.txt").write_text("x" * 1000)
    whole = tarfile.TarFile.gettarinfo

    def cut(archive: tarfile.TarFile, *given: Any) -> tarfile.TarInfo:
        info = whole(archive, *given)
        (tmp_path / "log.txt").write_text("")  # its writer begins again
        return info

    monkeypatch.setattr(tarfile.TarFile, "gettarinfo", cut)
    with pytest.raises(CliError, match=r"workdir: cannot read .*log\.txt: ") as told:
        pack(tmp_path)
    assert told.value.code is ExitCode.USAGE


def test_links_do_not_lead_out_of_a_workdir(tmp_path: Path) -> None:
    outside = tmp_path / "secret"
    outside.write_text("x")
    folder = fill(tmp_path / "work", {"a.py": "x"})
    (folder / "link").symlink_to(outside)
    (folder / "folder").symlink_to(tmp_path)
    assert names(pack(folder)) == ["a.py"]


def test_the_same_files_give_the_same_bundle(tmp_path: Path) -> None:
    files = {"b.py": "2", "a.py": "1"}
    first = pack(fill(tmp_path / "one", files))
    second = pack(fill(tmp_path / "two", dict(reversed(files.items()))))
    assert first == second
    assert first.digest != pack(fill(tmp_path / "three", {"a.py": "1", "b.py": "3"})).digest


def test_a_large_workdir_is_refused_and_its_largest_files_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_file, "MAX_BUNDLE_FILES", 2)
    folder = fill(tmp_path, {"a": "1", "b": "22", "c": "333"})
    with pytest.raises(CliError, match=r"c \(3 bytes\)"):
        pack(folder)


def test_a_checkout_is_recorded_with_its_changes(tmp_path: Path) -> None:
    folder = fill(tmp_path / "work", {"a.py": "one\n"})
    for arguments in (
        ["init", "-q"], ["add", "."],
        ["-c", "user.name=n", "-c", "user.email=e@x", "commit", "-qm", "m"],
    ):  # fmt: skip
        subprocess.run(["git", "-C", str(folder), *arguments], check=True)
    (folder / "a.py").write_text("two\n")
    spec = read_job_file(written(tmp_path, GOOD + "workdir: work\n")).spec
    assert spec.code_ref is not None
    assert len(spec.code_ref) == 40
    assert "+two" in (spec.code_diff or "")
    named = read_job_file(written(tmp_path, GOOD + "workdir: work\ncode_ref: v1\n")).spec
    assert (named.code_ref, named.code_diff) == ("v1", None)
