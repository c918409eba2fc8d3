"""A job's program that logs to MLflow as users' scripts do: `python mlflow_script.py KIND [ARG]`.

It has no setting of MLflow of its own: the node agent gives it all.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import mlflow

XS = [[0.0], [1.0], [2.0], [3.0]]


def sklearn(_: str) -> None:
    """MLflow's autolog, a model included."""
    from sklearn.linear_model import LogisticRegression

    mlflow.autolog()
    LogisticRegression(max_iter=50, C=0.5).fit(XS, [0, 0, 1, 1])


def trainer(_: str) -> None:
    """The Trainer of Hugging Face with its own callback."""
    import torch
    from transformers import Trainer, TrainingArguments

    class Line(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(1, 1)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            found = self.line(x)
            return {"loss": ((found - labels) ** 2).mean(), "logits": found}

    data: Any = [{"x": torch.tensor(x), "labels": torch.tensor(x) * 2} for x in XS]
    arguments = TrainingArguments(
        "out", max_steps=4, logging_steps=1, report_to=["mlflow"], use_cpu=True,
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    Trainer(Line(), arguments, train_dataset=data).train()


def lightning(_: str) -> None:
    """Lightning with its own logger, checkpoints included."""
    import lightning as pl
    import torch
    from lightning.pytorch.loggers import MLFlowLogger

    class Line(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(1, 1)

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            loss = ((self.line(batch[0]) - batch[1]) ** 2).mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.01)

    xs = torch.tensor(XS)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(xs, 2 * xs))
    logger = MLFlowLogger(os.environ["MLFLOW_EXPERIMENT_NAME"], log_model=True)
    pl.Trainer(
        max_epochs=1, logger=logger, log_every_n_steps=1, accelerator="cpu",
        enable_progress_bar=False,
    ).fit(Line(), data)  # fmt: skip


def keras(_: str) -> None:
    """Keras on torch with MLflow's autolog."""
    os.environ["KERAS_BACKEND"] = "torch"
    import numpy as np
    from keras import Sequential, layers

    mlflow.autolog(log_models=False)
    xs = np.array(XS)
    model = Sequential([layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(xs, 2 * xs, epochs=4, verbose=0)


def study(name: str) -> None:
    """Nested runs in an experiment of the script's choice, and a search for the best one."""
    mlflow.set_experiment(name)
    with mlflow.start_run(run_name="study"):
        for trial in range(3):
            with mlflow.start_run(run_name=f"trial-{trial}", nested=True):
                mlflow.log_param("lr", 0.1 * trial)
                mlflow.log_metric("loss", abs(1.0 - trial), step=1)
        best = mlflow.search_runs(
            filter_string="metrics.loss >= 0", order_by=["metrics.loss"], output_format="list"
        )
        mlflow.log_text(f"{best[0].info.run_name} of {len(best)}", "best.txt")
        mlflow.set_tag("done", "yes")


def hold(folder: str) -> None:
    """Log a metric, put the token and the run into files, and wait for the file `go`."""
    with mlflow.start_run() as run:
        mlflow.log_metric("loss", 1.0, step=1)
        told = Path(folder) / os.environ["GANGLINE_ATTEMPT"]
        told.with_suffix(".token").write_text(os.environ["MLFLOW_TRACKING_TOKEN"])
        told.with_suffix(".run").write_text(run.info.run_id)
        while not (Path(folder) / "go").exists():
            time.sleep(0.1)
        mlflow.log_metric("loss", 0.5, step=2)


if __name__ == "__main__":
    os.chdir(tempfile.mkdtemp())
    kinds = (sklearn, trainer, lightning, keras, study, hold)
    {kind.__name__: kind for kind in kinds}[sys.argv[1]]((*sys.argv, "")[2])
