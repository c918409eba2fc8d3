"""Studies to Optuna's journal, and searches of Katib, W&B and Determined as study files."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import optuna
import pytest
import yaml
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from gangline.errors import CliError
from gangline.exchange.study_import import translate
from gangline.exchange.study_journal import write_journal
from gangline_gateway import studies_state, study_views
from gangline_schemas.study_file import StudySpec
from support.builders.studies import Studies, example


def written(made: Studies, path: Path) -> Path:
    study_id = "lr-sweep-1"
    facts = made.state.studies[study_id]
    trials = studies_state.trials_of(made.state, study_id)
    write_journal(
        path,
        studies_state.detail(made.state, study_id, facts, made.now),
        [studies_state.trial(study_id, facts, each, made.now) for each in trials],
        study_views.curves(facts, trials, 100),
    )
    return path


def test_optuna_reads_the_journal(tmp_path: Path) -> None:
    made, study_id = example(), "lr-sweep-1"
    facts = made.state.studies[study_id]
    trials = studies_state.trials_of(made.state, study_id)
    path = written(made, tmp_path / "study.journal")
    found = optuna.load_study(
        study_name=study_id, storage=JournalStorage(JournalFileBackend(str(path)))
    )
    assert found.direction.name == "MINIMIZE"
    assert [each.state.name for each in found.trials] == [
        "COMPLETE", "PRUNED", "COMPLETE", "RUNNING", "FAIL", "RUNNING", "RUNNING",
    ]  # fmt: skip
    assert found.best_value == 1.5
    assert found.best_params == {"lr": 3e-2, "opt": "adam"}
    assert found.trials[1].intermediate_values == {10: 3.5}
    assert found.trials[1].params["opt"] == "sgd"
    assert found.trials[1].value == 3.5  # as Optuna notes it of a trial that raised TrialPruned
    assert found.best_trial.user_attrs["gangline.job"] == "lr-sweep-1-t2"
    with pytest.raises(CliError, match="cannot write"):
        write_journal(
            path,
            studies_state.detail(made.state, study_id, facts, datetime.now(UTC)),
            [],
            study_views.curves(facts, trials, 1),
        )


def test_only_a_trial_with_a_result_breaks_a_constraint(tmp_path: Path) -> None:
    made = Studies()
    made.create(constraints=[{"metric": "memory_gb", "max": 5.0}])
    made.run(0, {10: 3.0}, others={"memory_gb": 6.0})
    made.run(1, {10: 2.0}, others={"memory_gb": 4.0})
    made.run(2, {}, end="")
    path = written(made, tmp_path / "study.journal")
    storage = JournalStorage(JournalFileBackend(str(path)))
    found = optuna.load_study(study_name="lr-sweep-1", storage=storage)
    assert [each.constraints for each in found.trials] == [{"0": 1.0}, {"0": -1.0}, {}]


@pytest.mark.nightly
def test_the_dashboard_of_optuna_shows_the_journal(tmp_path: Path) -> None:
    """Without the package optuna-dashboard it is skipped: no part of the platform needs it."""
    dashboard = pytest.importorskip("optuna_dashboard")
    path = written(example(), tmp_path / "study.journal")
    app = dashboard.wsgi(JournalStorage(JournalFileBackend(str(path))))

    def answer(place: str) -> Any:
        asked: dict[str, Any] = {"PATH_INFO": place}
        setup_testing_defaults(asked)
        return json.loads(b"".join(app(asked, lambda *_: None)))

    assert [one["study_name"] for one in answer("/api/studies")["study_summaries"]] == [
        "lr-sweep-1"
    ]
    trials = answer("/api/studies/0")["trials"]
    assert [(one["state"], one.get("values")) for one in trials[:4]] == [
        ("Complete", [2.0]), ("Pruned", [3.5]), ("Complete", [1.5]), ("Running", None),
    ]  # fmt: skip
    assert trials[2]["intermediate_values"][-1] == {"step": 90, "value": 1.5}


KATIB = {
    "apiVersion": "kubeflow.org/v1beta1",
    "kind": "Experiment",
    "metadata": {"name": "TPE_Example"},
    "spec": {
        "objective": {"type": "minimize", "goal": 0.001, "objectiveMetricName": "loss"},
        "algorithm": {"algorithmName": "tpe"},
        "parallelTrialCount": 3,
        "maxTrialCount": 12,
        "maxFailedTrialCount": 3,
        "parameters": [
            {
                "name": "lr",
                "parameterType": "double",
                "feasibleSpace": {"min": "0.01", "max": "0.05", "distribution": "logUniform"},
            },
            {
                "name": "layers",
                "parameterType": "int",
                "feasibleSpace": {"min": "2", "max": "8", "step": "2"},
            },
            {
                "name": "opt",
                "parameterType": "categorical",
                "feasibleSpace": {"list": ["sgd", "adam"]},
            },
        ],
        "trialTemplate": {
            "primaryContainerName": "training-container",
            "trialParameters": [{"name": "learningRate", "reference": "lr"}],
            "trialSpec": {
                "spec": {
                    "template": {
                        "spec": {
                            "containers": [
                                {
                                    "name": "training-container",
                                    "image": "img:1",
                                    "command": [
                                        "python",
                                        "mnist.py",
                                        "--lr=${trialParameters.learningRate}",
                                    ],
                                    "resources": {"limits": {"nvidia.com/gpu": 2}},
                                }
                            ]
                        }
                    }
                }
            },
        },
    },
}
WANDB = {
    "program": "train.py",
    "name": "sweepdemo",
    "method": "bayes",
    "metric": {"goal": "minimize", "name": "validation_loss"},
    "parameters": {
        "batch_size": {"values": [16, 32, 64]},
        "learning_rate": {"distribution": "log_uniform_values", "min": 0.0001, "max": 0.1},
        "layers": {"min": 2, "max": 8},
        "optimizer": {"value": "adam"},
    },
    "early_terminate": {"type": "hyperband", "min_iter": 3, "eta": 3, "max_iter": 27},
    "run_cap": 40,
}
DETERMINED = {
    "name": "mnist_adaptive",
    "hyperparameters": {
        "learning_rate": {"type": "log", "base": 10, "minval": -4, "maxval": -1},
        "n_filters1": {"type": "int", "minval": 8, "maxval": 64},
        "dropout1": {"type": "double", "minval": 0.2, "maxval": 0.8},
        "global_batch_size": 64,
    },
    "searcher": {
        "name": "adaptive_asha",
        "metric": "accuracy",
        "smaller_is_better": False,
        "max_trials": 16,
        "time_metric": "batches",
        "max_time": 937,
    },
    "entrypoint": "python3 train.py",
    "resources": {"slots_per_trial": 4},
}


def imported(tmp_path: Path, content: dict[str, Any]) -> tuple[StudySpec, str]:
    path = tmp_path / "source.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    made = translate(path, "nlp")
    spec = StudySpec.model_validate(yaml.safe_load(made.text))
    return spec, "\n".join(made.notes)


def test_an_experiment_of_katib(tmp_path: Path) -> None:
    spec, notes = imported(tmp_path, KATIB)
    assert (spec.name, spec.team, spec.sampler) == ("tpe-example", "nlp", "tpe")
    assert (spec.limits.trials, spec.limits.parallel, spec.limits.failed) == (12, 3, 3)
    assert spec.space["lr"].model_dump()["log"] is True
    assert spec.space["layers"].model_dump()["step"] == 2
    assert spec.job["command"] == ["python", "mnist.py", "--lr=${{ lr }}"]
    assert spec.job["resources"] == {"gpus": 2}
    assert "objective.goal" in notes


def test_a_sweep_of_wandb(tmp_path: Path) -> None:
    spec, _notes = imported(tmp_path, WANDB)
    assert (spec.sampler, spec.limits.trials) == ("tpe", 40)
    assert spec.space["layers"].type == "int"
    assert spec.space["learning_rate"].model_dump()["log"] is True
    assert spec.stopping.model_dump() == {
        "kind": "asha", "min_steps": 3, "max_steps": 27, "factor": 3, "mode": "stop"
    }  # fmt: skip
    assert spec.job["command"] == [
        "python", "train.py", "--optimizer=adam", "--batch_size=${{ batch_size }}",
        "--learning_rate=${{ learning_rate }}", "--layers=${{ layers }}",
    ]  # fmt: skip


def test_an_experiment_of_determined(tmp_path: Path) -> None:
    spec, notes = imported(tmp_path, DETERMINED)
    assert spec.objective[0].direction == "maximize"
    space = spec.space["learning_rate"].model_dump()
    assert (space["low"], space["high"], space["log"]) == (pytest.approx(1e-4), 0.1, True)
    assert spec.stopping.kind == "asha"
    assert spec.job["hyperparameters"] == {"global_batch_size": 64}
    assert "check stopping" in notes


@pytest.mark.parametrize("rule", [{"s": 10**30}, {"eta": 0}, {"eta": 1, "s": 10**30}])
def test_a_hyperband_of_wandb_without_a_sound_first_rung(
    tmp_path: Path, rule: dict[str, int]
) -> None:
    """Powers of such numbers would keep the command busy for ever, or end it without a message."""
    stopping = {"type": "hyperband", "eta": 3, "max_iter": 27, **rule}
    spec, notes = imported(tmp_path, {**WANDB, "early_terminate": stopping})
    assert spec.stopping.kind == ("asha" if "eta" not in rule else "none")
    assert ("early_terminate is left out" in notes) == ("eta" in rule)


@pytest.mark.parametrize("change", [{"max_time": {}}, {"divisor": 0}, {"divisor": 1}])
def test_an_experiment_of_determined_without_a_sound_first_rung(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    searcher = {**DETERMINED["searcher"], **change}
    spec, notes = imported(tmp_path, {**DETERMINED, "searcher": searcher})
    assert spec.stopping.kind == "none"
    assert "adaptive_asha: set stopping" in notes


def changed_katib(**fields: Any) -> dict[str, Any]:
    return {**KATIB, "spec": {**KATIB["spec"], **fields}}  # type: ignore[dict-item]


def container(**fields: Any) -> dict[str, Any]:
    return {"name": "training-container", "command": ["python", "mnist.py"], **fields}


def test_katib_with_a_fixed_parameter_early_stopping_and_a_container_without_gpus(
    tmp_path: Path,
) -> None:
    main = container(
        resources={"limits": {"cpu": "500m", "memory": "1Gi"}},
        env=[
            {"name": "RATE", "value": "${trialParameters.rate}"},
            {"name": "TRIAL", "value": "${trialParameters.trial}"},
        ],
    )
    content = changed_katib(
        parameters=[
            {"name": "lr", "parameterType": "double",
             "feasibleSpace": {"min": "0.01", "max": "0.5", "distribution": "logNormal"}},
            {"name": "epochs", "parameterType": "int", "feasibleSpace": {"min": "1", "max": "1"}},
        ],
        algorithm={"algorithmName": "pbt"},
        earlyStopping={"algorithmName": "medianstop", "algorithmSettings": [
            {"name": "min_trials_required", "value": "1"}, {"name": "start_step", "value": "2"},
        ]},
        resumePolicy="FromVolume",
        trialTemplate={
            "trialParameters": [{"name": "rate", "reference": "lr"},
                                {"name": "trial", "reference": "${trialSpec.Name}"}],
            "trialSpec": {"spec": {"template": {"spec": {"containers": [main]}}}},
        },
    )  # fmt: skip
    spec, notes = imported(tmp_path, content)
    assert spec.space["epochs"].model_dump()["values"] == (1,)
    assert spec.stopping.model_dump() == {
        "kind": "median", "startup_trials": 1, "warmup_steps": 2
    }  # fmt: skip
    assert spec.job["env"] == {"RATE": "${{ lr }}"}
    assert spec.job["resources"] == {"gpus": 0, "cpus": 0.5, "memory_gb": 1.074}
    for words in (
        "parameters.lr: logNormal is searched evenly", "env TRIAL is left out",
        "left out: spec.resumePolicy", "algorithm pbt: set stopping",
    ):  # fmt: skip
        assert words in notes


@pytest.mark.parametrize(
    ("trial", "gpus"),
    [
        ({"pytorchReplicaSpecs": {
            name: {"replicas": count, "template": {"spec": {"containers": [
                container(resources={"limits": {"nvidia.com/gpu": 2}})]}}}
            for name, count in (("Master", 1), ("Worker", 3))}}, 8),
        ({"trainer": {"numNodes": 2, "image": "img:1", "command": ["python", "mnist.py"]}}, 2),
    ],
)  # fmt: skip
def test_katib_with_a_trial_of_several_replicas_is_one_gang(
    tmp_path: Path, trial: dict[str, Any], gpus: int
) -> None:
    spec, notes = imported(tmp_path, changed_katib(trialTemplate={"trialSpec": {"spec": trial}}))
    assert spec.job["command"] == ["python", "mnist.py"]
    assert spec.job["resources"] == {"gpus": gpus}
    assert "replicas: their ranks all run" in notes


def test_a_sweep_of_wandb_with_groups_and_the_other_form_of_hyperband(tmp_path: Path) -> None:
    content = {
        **WANDB,
        "parameters": {
            "optimizer": {"parameters": {"lr": {"min": 1e-5, "max": 0.1}, "name": {"value": "x"}}}
        },
        "early_terminate": {"type": "hyperband", "s": 2, "eta": 3, "max_iter": 27},
        "command": ["${env}", "${interpreter}", "${program}", "${args_json}"],
        "project": "mine",
    }
    spec, notes = imported(tmp_path, content)
    assert [*spec.space] == ["optimizer.lr"]
    assert spec.stopping.model_dump() == {
        "kind": "asha", "min_steps": 3, "max_steps": 27, "factor": 3, "mode": "stop"
    }  # fmt: skip
    assert spec.job["command"] == ["python", "train.py"]
    assert spec.job["hyperparameters"] == {"optimizer.name": "x"}
    for words in ("left out: project", "${args_json} is left out", "named optimizer.NAME"):
        assert words in notes


def test_an_experiment_of_determined_with_groups_a_grid_and_a_class(tmp_path: Path) -> None:
    searcher = {"name": "grid", "metric": "loss", "max_length": {"epochs": 1}, "mode": "standard"}
    content = {
        **DETERMINED,
        "name": None,
        "description": "grid of two",
        "hyperparameters": {
            "optimizer": {"lr": {"type": "log", "minval": -3, "maxval": -1, "count": 3}},
            "layers": {"type": "int", "minval": 1, "maxval": 4, "count": 2},
            "batch": {"type": "const", "val": 64},
        },
        "searcher": searcher,
        "entrypoint": "model_def:Trial",
        "environment": {"image": {"cpu": "det:cpu", "gpu": "det:gpu"}},
        "bind_mounts": [],
    }
    del content["name"]
    spec, notes = imported(tmp_path, content)
    assert spec.name == "grid-of-two"
    assert spec.space["optimizer.lr"].model_dump()["values"] == pytest.approx((1e-3, 1e-2, 0.1))
    assert spec.space["layers"].model_dump()["values"] == (1, 4)
    assert (spec.job["run"], spec.job["image"]) == ("python train.py", "det:gpu")
    for words in ("left out: bind_mounts", "left out: searcher.mode", "is a class of Determined"):
        assert words in notes
    short = {**content, "searcher": {**searcher, "name": "adaptive_asha"}}
    spec, notes = imported(tmp_path, short)
    assert (spec.stopping.kind, "adaptive_asha: set stopping" in notes) == ("none", True)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"name": "x"}, "no search of Katib, W&B or Determined"),
        ({**WANDB, "metric": None}, "metric is missing"),
        (
            {**WANDB, "parameters": {"x": {"distribution": "normal", "mu": 0, "sigma": 1}}},
            "no min and max",
        ),
        ({**DETERMINED, "hyperparameters": {"lr": 0.1}}, "nothing to search"),
        (changed_katib(trialTemplate={}), "no container"),
        ({"kind": "Experiment", "spec": {"nasConfig": {}}}, "a search of architectures"),
        ({"searcher": 3}, "not as its tool writes it"),
        (
            {
                **DETERMINED,
                "hyperparameters": {"lr": {"type": "log", "base": 0, "minval": -4, "maxval": -1}},
            },
            "not as its tool writes it",
        ),
    ],
)
def test_a_file_that_is_no_search(tmp_path: Path, content: dict[str, Any], expected: str) -> None:
    path = tmp_path / "source.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    with pytest.raises(CliError) as caught:
        translate(path, "nlp")
    assert expected in caught.value.message
