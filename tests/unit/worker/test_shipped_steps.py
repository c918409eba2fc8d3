"""The shipped steps of pipelines, one after the other: export, evaluate, compare; bad input."""

from __future__ import annotations

import json
import math
import random
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file

from gangline_worker.checkpoint.commit import commit_local
from gangline_worker.checkpoint.export import export_weights
from gangline_worker.checkpoint.loader import Checkpoint
from gangline_worker.checkpoint.saver import AsyncSaver, SaverIdentity
from gangline_worker.data.errors import DataError
from gangline_worker.data.step_inputs import placed
from gangline_worker.steps import compare, evaluate, export, onnx_model, prepare, register
from gangline_worker.steps.folders import StepError
from gangline_worker.steps.weights import load_model
from gangline_worker.training.config import TrainConfig
from gangline_worker.training.history import MOST, History
from gangline_worker.training.model import Transformer
from support.fakes.stub_gateway import TOKEN, Stub, problem, stub

__all__ = ["stub"]

SMALL = {"dim": 16, "layers": 1, "heads": 2, "seq_len": 16}
CPU = torch.device("cpu")


def saved(folder: Path, seed: int) -> Path:
    """A committed checkpoint of a small model."""
    model = Transformer(TrainConfig.model_validate(SMALL))
    model.reset_buffers()
    model.reset_weights(seed)
    tensors = {f"model.{name}": tensor for name, tensor in model.named_parameters()}
    saver = AsyncSaver(SaverIdentity(folder, "job-1", 1, 0, 1), lambda _: None)
    saver.begin(20, tensors, {}, {})
    saver.wait()
    found = folder / "attempt-0001" / "step-0000000020"
    assert commit_local(found, 1)
    return found


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a step, with `in` and `out`."""
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(f"GANGLINE_{name.upper()}", str(tmp_path / name))
    monkeypatch.setenv("GANGLINE_HYPERPARAMETERS", json.dumps(SMALL))
    return tmp_path


def outputs(step: Path, *names: str) -> None:
    for name in names:
        (step / "out" / name).mkdir()


def test_a_checkpoint_becomes_weights_that_are_measured_evaluated_and_compared(
    step: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for who, seed in (("model", 1), ("baseline", 2)):
        monkeypatch.setenv("GANGLINE_RESUME_FROM", str(saved(step / who, seed)))
        outputs(step, "model", "serving")
        assert export.main([]) == 0
        serving = json.loads((step / "out" / "serving" / "serving.json").read_text())
        assert serving["difference"] == 0.0
        assert serving["loads"]
        assert [one["batch"] for one in serving["latencies"]] == [1, 8]
        assert float((step / "out" / "difference").read_text()) == 0.0
        (step / "out" / "model").rename(step / "in" / who)
        (step / "out" / "serving").rename(step / f"serving-{who}")
    weights = load_model(step / "in" / "model", CPU).state_dict()
    assert not torch.equal(
        weights["output.weight"],
        load_model(step / "in" / "baseline", CPU).state_dict()["output.weight"],
    )

    (step / "text").mkdir()
    (step / "text" / "a.py").write_text("print('hello')\n" * 400)
    outputs(step, "scores")
    arguments = ["--suite", f"prints={step / 'text'}", "--items", "40", "--batch-size", "16"]
    assert evaluate.main(arguments) == 0
    first = (step / "out" / "scores" / "candidate" / "prints.json").read_bytes()
    assert len(json.loads(first)["items"]) == 40
    assert evaluate.main(arguments) == 0
    assert (step / "out" / "scores" / "candidate" / "prints.json").read_bytes() == first
    assert 0 <= float((step / "out" / "accuracy").read_text()) <= 1

    (step / "out" / "scores").rename(step / "in" / "scores")
    for who, before in (("model", ""), ("baseline", "baseline_")):
        (step / f"serving-{who}").rename(step / "in" / f"{before}serving")
        (step / "in" / f"{before}history").mkdir()
        if not before:
            outputs(step, "history")
        history = History(4)
        for at in range(1, 2 * MOST + 1):
            history.add(at, {"loss": 1 / at} if at % 100 else {"loss": 1 / at, "eval_loss": 2 / at})
        history.leave()
        (step / "out" / "history" / "history.json").rename(
            step / "in" / f"{before}history" / "history.json"
        )
    outputs(step, "report")
    assert compare.main([]) == 0
    report = json.loads((step / "out" / "report" / "report.json").read_text())
    one = report["suites"]["prints"]
    assert one["low"] <= one["difference"] <= one["high"]
    assert one["difference"] == pytest.approx(one["candidate"] - one["baseline"])
    assert {*report["costs"]} == {*report["curves"]} == {"candidate", "baseline"}
    cost = report["costs"]["candidate"]
    assert cost["rank_hours"] > 0
    assert cost["memory_bytes"] >= sum(tensor.nbytes for tensor in weights.values())
    curves = report["curves"]["candidate"]
    assert len(curves["loss"]) <= MOST
    assert curves["loss"][-1] == [2 * MOST, 1 / (2 * MOST)]
    assert [at for at, _ in curves["eval_loss"]] == [*range(100, 2 * MOST + 1, 100)]
    shown = (step / "out" / "report" / "report.html").read_text()
    assert "<td>prints</td>" in shown
    assert shown.count("<polyline") == 4
    assert "<td>Memory, MB</td>" in shown
    assert "prints: " in capsys.readouterr().out


def test_items_are_paired_by_their_tokens_and_never_by_their_place(
    step: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GANGLINE_RESUME_FROM", str(saved(step / "model", 1)))
    outputs(step, "model", "serving", "scores")
    assert export.main([]) == 0
    (step / "out" / "model").rename(step / "in" / "model")
    for name, line in (("prints", "print('hello')\n"), ("reads", "input('hello?')\n")):
        (step / name).mkdir()
        (step / name / "a.py").write_text(line * 400)

    def items(suite: str, *more: str) -> dict[str, float]:
        assert evaluate.main(["--suite", f"one={step / suite}", "--items", "40", *more]) == 0
        found = json.loads((step / "out" / "scores" / "candidate" / "one.json").read_text())
        return dict(found["items"])

    first = items("prints")
    assert len(first) == 40, "a text that repeats itself has equal windows"
    assert items("prints", "--batch-size", "7").keys() == first.keys()
    assert not items("reads").keys() & first.keys()
    assert evaluate.main(["--suite", "one=in:a", "--suite", "one=in:b"]) == 2
    assert "two suites have one name" in capsys.readouterr().err


def test_torch_export_gives_a_graph_that_agrees(
    step: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANGLINE_RESUME_FROM", str(saved(step / "saved", 1)))
    outputs(step, "model", "serving")
    assert export.main(["--format", "torch-export"]) == 0
    serving = json.loads((step / "out" / "serving" / "serving.json").read_text())
    assert (step / "out" / "model" / "model.pt2").is_file()
    assert serving["difference"] < 1e-4


def test_onnx_gives_a_graph_that_agrees_and_serves_batches(
    step: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    monkeypatch.setenv("GANGLINE_RESUME_FROM", str(saved(step / "saved", 1)))
    outputs(step, "model", "serving")
    assert export.main(["--format", "onnx"]) == 0
    serving = json.loads((step / "out" / "serving" / "serving.json").read_text())
    assert (step / "out" / "model" / "model.onnx").is_file()
    assert serving["loads"], serving
    assert serving["difference"] < 1e-4
    assert [one["batch"] for one in serving["latencies"]] == [1, 8]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, torch.AcceleratorError])
def test_a_device_that_fails_is_no_verdict_about_the_model(
    step: Path, monkeypatch: pytest.MonkeyPatch, error: type[RuntimeError]
) -> None:
    def load(*_: object) -> None:
        raise error("of the device")

    monkeypatch.setenv("GANGLINE_RESUME_FROM", str(saved(step / "saved", 1)))
    outputs(step, "model", "serving")
    monkeypatch.setattr(export, "load_model", load)
    with pytest.raises(error):
        export.main([])
    assert not (step / "out" / "serving" / "serving.json").exists()


def test_what_onnxruntime_cannot_load_or_run_is_an_error_of_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fail(Exception):
        """As onnxruntime's errors: not of RuntimeError."""

    def session(place: str, **_: object) -> None:
        raise Fail(f"no graph in {place}")

    monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace(InferenceSession=session))
    with pytest.raises(StepError, match="onnxruntime: no graph in"):
        onnx_model.OnnxModel(tmp_path / "model.onnx")


def test_without_onnx_the_way_out_is_named(
    step: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert step.is_dir()
    monkeypatch.setattr(onnx_model, "find_spec", lambda _: None)
    assert export.main(["--format", "onnx"]) == 2
    assert "install gangline-worker[onnx]" in capsys.readouterr().err


def test_a_model_that_does_not_load_is_reported(
    step: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(checkpoint: Checkpoint, folder: Path) -> None:
        export_weights(checkpoint, folder)
        for file in folder.glob("*.safetensors"):
            file.write_bytes(file.read_bytes()[:-100])

    monkeypatch.setattr(export, "export_weights", damaged)
    monkeypatch.setenv("GANGLINE_RESUME_FROM", str(saved(step / "saved", 1)))
    outputs(step, "model", "serving")
    assert export.main([]) == 0
    serving = json.loads((step / "out" / "serving" / "serving.json").read_text())
    assert not serving["loads"]
    assert "SafetensorError" in serving["error"]
    made = json.loads((step / "out" / "serving" / "checkpoint.json").read_text())
    assert made == {"job_id": "job-1", "step": 20}


def test_a_model_whose_outputs_are_no_numbers_is_reported(
    step: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its training diverged. NaN is no JSON, so the gateway would not get the report."""

    def diverged(checkpoint: Checkpoint, folder: Path) -> None:
        export_weights(checkpoint, folder)
        for file in folder.glob("*.safetensors"):
            tensors = load_file(file)
            save_file({name: one * math.nan for name, one in tensors.items()}, file)

    monkeypatch.setattr(export, "export_weights", diverged)
    monkeypatch.setenv("GANGLINE_RESUME_FROM", str(saved(step / "saved", 1)))
    outputs(step, "model", "serving")
    assert export.main([]) == 0
    serving = json.loads((step / "out" / "serving" / "serving.json").read_text())
    assert not serving["loads"]
    assert "outputs are not finite" in serving["error"]


def test_many_items_are_compared_in_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = random.Random(1)
    ours, theirs = ({str(at): drawn.random() for at in range(5000)} for _ in range(2))
    tracemalloc.start()
    found = compare.compared(ours, theirs)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 64 << 20
    monkeypatch.setattr(compare, "_AT_ONCE", 10**9)
    assert compare.compared(ours, theirs) == found


class OneRegistry:
    """MLflow's registry, as the step asks it."""

    versions: ClassVar[list[SimpleNamespace]] = []

    def log_artifacts(self, *_: str) -> None:
        pass

    def create_registered_model(self, name: str) -> None:
        pass

    def get_run(self, run: str) -> SimpleNamespace:
        return SimpleNamespace(info=SimpleNamespace(artifact_uri=f"mlflow-artifacts:/{run}"))

    def search_model_versions(self, text: str) -> list[SimpleNamespace]:
        return [one for one in self.versions if text == f"run_id = '{one.run_id}'"]

    def create_model_version(
        self, name: str, source: str, run_id: str, **_: object
    ) -> SimpleNamespace:
        version = 1 + sum(one.name == name for one in self.versions)
        made = SimpleNamespace(name=name, source=source, run_id=run_id, version=str(version))
        self.versions.append(made)
        return made


def test_a_job_that_was_killed_after_it_made_its_version_makes_no_second_one(
    step: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OneRegistry, "versions", [])
    monkeypatch.setattr("mlflow.MlflowClient", OneRegistry)
    monkeypatch.setenv("MLFLOW_RUN_ID", "run-1")
    monkeypatch.setenv("GANGLINE_RUN_ID", "job-1")
    (step / "in" / "model").mkdir()
    for name, version in (("a", 1.0), ("b", 1.0), ("a", 1.0)):
        assert register.main([name]) == 0
        assert float((step / "out" / "version").read_text()) == version
    assert [one.name for one in OneRegistry.versions] == ["a", "b"]
    monkeypatch.setenv("MLFLOW_RUN_ID", "run-2")
    assert register.main(["a"]) == 0
    assert float((step / "out" / "version").read_text()) == 2.0


@pytest.mark.parametrize("arguments", [["--items", "0"], ["--batch-size", "-1"]])
def test_no_items_are_refused(
    step: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert step.is_dir()
    with pytest.raises(SystemExit):
        evaluate.main(arguments)
    assert f"{arguments[1]} is not a whole number above 0" in capsys.readouterr().err


def test_a_difference_that_all_items_share_is_found_and_noise_is_not() -> None:
    items = {str(number): (number % 7) / 7 for number in range(200)}
    better = compare.compared({name: score + 0.01 for name, score in items.items()}, items)
    assert better["low"] > 0
    noisy = {name: items[name] + (0.2 if int(name) % 2 else -0.2) for name in items}
    same = compare.compared(noisy, items)
    assert same["low"] < 0 < same["high"]
    with pytest.raises(Exception, match="at least 20"):
        compare.compared({"1": 1.0}, items)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda: export.main([]), "resume: STEP"),
        (lambda: evaluate.main([]), "no input model"),
        (lambda: evaluate.main(["--suite", "x"]), "no input model"),
        (lambda: compare.main([]), "no input scores"),
        (lambda: register.main(["name"]), "no input model"),
        (lambda: register.main(["name", "--tag", "x"]), "NAME=VALUE"),
        (lambda: prepare.main(["in:text"]), "declare the output"),
    ],
)
def test_what_is_missing_is_named(
    step: Path, capsys: pytest.CaptureFixture[str], run: object, words: str
) -> None:
    assert step.is_dir()
    assert run() == 2  # type: ignore[operator]
    assert words in capsys.readouterr().err


def test_prepared_text_has_equal_bytes_for_equal_text(step: Path) -> None:
    (step / "in" / "text").mkdir()
    found = []
    for _ in range(2):
        (step / "in" / "text" / "a.txt").write_text("some words\n" * 50)
        outputs(step, "snapshot")
        assert prepare.main(["in:text"]) == 0
        made = step / "out" / "snapshot"
        found.append({path.name: path.read_bytes() for path in made.iterdir()})
        made.rename(step / f"kept-{len(found)}")
    assert found[0] == found[1]
    assert "manifest.json" in found[0]


@pytest.mark.parametrize(("options", "sent"), [((), 1), (("--no-profile",), 0)])
def test_prepared_data_send_their_profile(
    step: Path, stub: Stub, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], sent: int
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{stub.url}/mlflow/teams/nlp")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", TOKEN)
    stub.on("POST", "/v1/profiles", {})
    (step / "a.txt").write_text("some words\n" * 50)
    outputs(step, "snapshot")
    assert prepare.main([str(step / "a.txt"), *options]) == 0
    made = json.loads((step / "out" / "snapshot" / "manifest.json").read_text())
    assert [one["snapshot"] for one in stub.bodies("POST", "/v1/profiles")] == [made["name"]] * sent


def test_prepared_data_are_there_if_their_profile_is_refused(
    step: Path, stub: Stub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{stub.url}/mlflow/teams/nlp")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", TOKEN)
    stub.on("POST", "/v1/profiles", problem(409, "conflict", "no registry here"))
    (step / "a.txt").write_text("some words\n" * 50)
    outputs(step, "snapshot")
    assert prepare.main([str(step / "a.txt")]) == 0
    assert (step / "out" / "snapshot" / "manifest.json").is_file()
    assert "is not sent: no registry here" in capsys.readouterr().err


def test_data_may_be_an_input_of_the_job(step: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (step / "in" / "data").mkdir()
    assert placed("in:data") == str(step / "in" / "data")
    assert placed("stdlib") == "stdlib"
    with pytest.raises(DataError, match="the job has no input words"):
        placed("in:words")
    monkeypatch.delenv("GANGLINE_IN")
    with pytest.raises(DataError, match="the job has no input data"):
        placed("in:data")
