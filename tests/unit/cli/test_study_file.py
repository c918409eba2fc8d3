"""Study files: the job beside them, and errors that name the file, the line and the field."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline.errors import CliError
from gangline.study_file import read_study_file

STUDY = """\
name: lr-sweep
team: nlp
objective: {metric: eval_loss}
space:
  lr: {type: float, low: 1.0e-5, high: 1.0e-2, log: true}
  tag: {type: choice, values: ["$(rm -rf /)", "a b"]}
stopping:
  kind: asha
  min_steps: 100
  max_steps: 900
job:
  run: python train.py --lr ${{ lr }} --tag ${{ tag }}
  resources: {gpus: 1}
"""


def written(folder: Path, text: str, **others: str) -> Path:
    for name, content in others.items():
        (folder / f"{name}.yaml").write_text(content)
    path = folder / "study.yaml"
    path.write_text(text)
    return path


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(CliError) as caught:
        read_study_file(written(folder, text))
    return caught.value.message


def test_a_study_file_is_a_spec(tmp_path: Path) -> None:
    found = read_study_file(written(tmp_path, STUDY))
    assert found.spec.name == "lr-sweep"
    assert found.bundle is None
    assert read_study_file(tmp_path / "study.yaml", {"team": "vision"}).spec.team == "vision"


def test_the_job_may_be_a_file_beside_it_with_a_workdir(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)\n")
    text = STUDY[: STUDY.index("job:")].replace("team: nlp\n", "") + "job: train.yaml\n"
    job = "name: train\nteam: nlp\nproject: x\nworkdir: code\nrun: python train.py\n"
    job += "resources: {gpus: 2}\n"
    found = read_study_file(written(tmp_path, text, train=job))
    assert (found.spec.team, found.spec.project) == ("nlp", "x")
    assert found.bundle is not None
    assert found.spec.job["code_bundle"] == found.bundle.digest


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("low: 1.0e-5", "low: 0", "line 5: space.lr"),
        ("high: 1.0e-2", "high: 1.0e-6", "line 5: space.lr"),
        ("lr: {type", "__proto__: {type", "__proto__"),
        ("min_steps: 100", "min_steps: 0", "line 9: stopping.min_steps"),
        ("max_steps: 900", "max_steps: 9", "line 7: stopping"),
        ("--lr ${{ lr }}", "--lr ${{ rate }}", "line 12: job.run"),
        ("gpus: 1", "gpus: 0.5", "line 13: job.resources.gpus"),
        ("metric: eval_loss", "direction: minimize", "line 3: objective"),
        ("values: [", "values: [1, 1, ", "line 6: space.tag"),
    ],
)
def test_an_error_names_the_line_and_the_field(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    assert old in STUDY
    message = refusal(tmp_path, STUDY.replace(old, new))
    assert str(tmp_path / "study.yaml") in message
    assert expected in message, message


def test_an_error_in_the_job_s_own_file_names_that_file_and_its_line(tmp_path: Path) -> None:
    text = STUDY[: STUDY.index("job:")] + "job: train.yaml\n"
    job = "run: python train.py\nresources:\n  gpus: 0.5\n"
    with pytest.raises(CliError) as caught:
        read_study_file(written(tmp_path, text, train=job))
    assert f"{tmp_path / 'train.yaml'}:3: job.resources.gpus: " in caught.value.message


def test_a_choice_of_10_000_is_refused(tmp_path: Path) -> None:
    many = ", ".join(map(str, range(10_000)))
    message = refusal(tmp_path, STUDY.replace('"$(rm -rf /)", "a b"', many))
    assert "line 6: space.tag" in message
    assert "1000" in message.replace(",", "")


def test_a_workdir_or_a_job_file_that_is_not_there(tmp_path: Path) -> None:
    assert "no folder nowhere" in refusal(
        tmp_path, STUDY.replace("  run: python", "  workdir: nowhere\n  run: python")
    )
    text = STUDY[: STUDY.index("job:")] + "job: nothing.yaml\n"
    assert "nothing.yaml" in refusal(tmp_path, text)
