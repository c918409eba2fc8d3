"""Hugging Face's Trainer with a callback that reports to Gangline and keeps its checkpoints there.

The model is made from a configuration, so nothing is downloaded. Outside of Gangline (torchrun
--nproc-per-node 2 train.py) it trains alike, and the callback does nothing.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gangline_worker import (
    doing,
    hyperparameters,
    report,
    restore,
    save,
    should_checkpoint,
    should_stop,
)

try:
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        Trainer,
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
        set_seed,
    )
except ImportError as missing:
    sys.exit(f"this example needs transformers and accelerate in the ranks' Python: {missing}")

VOCABULARY, LENGTH = 64, 32


def any_rank(here: object, device: torch.device) -> bool:
    """Ranks receive a request at different moments, so all do what any of them has received."""
    if not dist.is_initialized():
        return bool(here)
    anywhere = torch.tensor(int(bool(here)), device=device)
    dist.all_reduce(anywhere, op=dist.ReduceOp.MAX)
    return bool(anywhere.item())


def same_on_all_ranks(folder: Path) -> dict[str, bytes]:
    """The files of the Trainer's checkpoint, from those who wrote them; alike on every rank."""
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    if ranks > 1:
        dist.barrier()  # until all have written
    own = f"rng_state_{rank}.pth"
    mine = {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.name == own or (rank == 0 and not path.name.startswith("rng_state_"))
    }
    parts = [mine]
    if ranks > 1:
        parts *= ranks
        dist.all_gather_object(parts, mine)
    return {name: raw for part in parts for name, raw in part.items()}


class Gangline(TrainerCallback):
    """Tells Gangline of steps and activities, and does what it asks."""

    def on_train_begin(self, *_: object, **__: object) -> None:
        doing("training")

    def on_log(
        self, _: object, state: TrainerState, __: object, logs: dict[str, Any], **___: object
    ) -> None:
        if state.is_world_process_zero:
            numbers = {name: value for name, value in logs.items() if isinstance(value, float)}
            report(numbers, state.global_step)

    def on_step_end(
        self, args: TrainingArguments, _: object, control: TrainerControl, **__: object
    ) -> None:
        stop = any_rank(should_stop(), args.device)
        if any_rank(should_checkpoint(), args.device) or stop:
            control.should_save = True
        if stop:
            control.should_training_stop = True

    def on_save(
        self, args: TrainingArguments, state: TrainerState, *_: object, **__: object
    ) -> None:
        if "GANGLINE_CHECKPOINT_DIR" not in os.environ:
            return
        with doing("checkpointing"):
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            files = {
                name: torch.frombuffer(bytearray(raw), dtype=torch.uint8)
                for name, raw in same_on_all_ranks(folder).items()
            }
            save({"files": files}, state.global_step)


def checkpoint_to_resume() -> str | None:
    """The Trainer's own checkpoint folder, as it was saved; None on a first start."""
    restored = restore()
    if restored is None:
        return None
    folder = Path(tempfile.mkdtemp()) / f"checkpoint-{restored.step}"
    folder.mkdir()
    for name, raw in restored.state["files"].items():
        (folder / name).write_bytes(raw.numpy().tobytes())
    return str(folder)


class Arguments(TrainingArguments):
    """Training arguments whose CPU is `cpu`: `torch.load` does not know accelerate's `cpu:0`."""

    @property
    def device(self) -> torch.device:
        found = super().device
        return torch.device("cpu") if found.type == "cpu" else found


class Countings(torch.utils.data.Dataset):
    """Sequences that count up in steps of 1 to 7: what comes next can be learned."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(LENGTH) * (1 + index % 7) + index) % VOCABULARY
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    settings = {"steps": 40, "save_every": 10, "lr": 3e-3} | hyperparameters()
    set_seed(17)
    shape = {"vocab_size": VOCABULARY, "n_positions": LENGTH, "n_embd": 64, "n_layer": 2}
    model = GPT2LMHeadModel(GPT2Config(n_head=2, bos_token_id=0, eos_token_id=0, **shape))
    trainer = Trainer(
        model=model,
        args=Arguments(
            output_dir="trainer",
            max_steps=settings["steps"],
            per_device_train_batch_size=8,
            learning_rate=settings["lr"],
            logging_steps=1,
            logging_nan_inf_filter=False,  # else a loss that is not finite never shows
            save_steps=settings["save_every"],
            save_total_limit=1,  # Gangline keeps as many as the job file says
            dataloader_num_workers=2,
            save_on_each_node=True,  # no disk is shared
            report_to="none",
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
        ),
        train_dataset=Countings(),
        callbacks=[Gangline()],
    )
    resume = checkpoint_to_resume()
    if resume and trainer.is_world_process_zero():
        print(f"resumed from {Path(resume).name}", flush=True)
    trainer.train(resume_from_checkpoint=resume)


if __name__ == "__main__":
    main()
