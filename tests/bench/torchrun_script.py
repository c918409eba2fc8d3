"""The demo's model trained by torch alone: what `torchrun` starts in the benchmark of restarts.

    python -m torch.distributed.run --standalone --nproc-per-node 2 torchrun_script.py FOLDER

The network, the data and the batch are those of a Gangline job of `models.SMALL`, sharded by FSDP2
in the same way. All else is torch's: a process group over the launcher's store, a `dcp.save` every
ten steps of which the newest two are kept, `dcp.load` of the newest at the start. No agent, no
reports. A rank appends a line to FOLDER/rank-N.jsonl when it has started, and after each step.

A rank ends with its launcher, and after `LIFE_S` in any case.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

LIFE_S = 240
_PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # first: imports take seconds
signal.alarm(LIFE_S)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

TORCH_IMPORTED = time.perf_counter()
from models import SMALL  # noqa: E402 - only Gangline's model needs it

from gangline_worker.data.text import TextData, load_text  # noqa: E402
from gangline_worker.training.config import TrainConfig  # noqa: E402
from gangline_worker.training.model import Transformer, loss_of  # noqa: E402
from gangline_worker.training.state import build_optimizer, tensors_of  # noqa: E402

MODEL_IMPORT_S = time.perf_counter() - TORCH_IMPORTED
SAVE_EVERY, KEPT = 10, 2


def saved(folder: Path) -> list[Path]:
    """Checkpoints that are whole, the oldest first: DCP writes `.metadata` last."""
    return sorted(path.parent for path in folder.glob("step-*/.metadata"))


def main(folder: Path) -> None:
    """Train for ever."""
    config = TrainConfig.model_validate(SMALL)
    torch.set_num_threads(1)
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # By default attempts share the launcher's store under the same keys: a rank that starts first
    # finds the address of a dead one there, cannot connect, and the whole attempt fails.
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    own = dist.PrefixStore(f"attempt-{attempt}", store)
    dist.init_process_group("gloo", store=own, rank=rank, world_size=size)
    out = (folder / f"rank-{rank}.jsonl").open("a", encoding="utf-8")

    def tell(**fields: float) -> None:
        out.write(json.dumps({"attempt": attempt, "time_s": time.time(), **fields}) + "\n")
        out.flush()

    text = load_text(config.data, max_bytes=config.data_max_bytes)
    data = TextData.of(text, seq_len=config.seq_len, seed=config.seed)
    with torch.device("meta"):
        model = Transformer(config)
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("shard",))
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    model.reset_buffers()
    optimizer = build_optimizer(model, config)
    step = torch.zeros((), dtype=torch.int64)
    state = {**tensors_of(model, optimizer), "step": step}
    if found := saved(folder):
        dcp.load(state, checkpoint_id=found[-1])
    else:
        model.reset_weights(config.seed)
    tell(pid=os.getpid(), step=step.item(), model_import_s=MODEL_IMPORT_S)

    while True:
        batch = data.batch(int(step) * config.batch_size, config.batch_size, rank, size)
        logits = model(torch.from_numpy(batch.inputs))
        loss_of(logits, torch.from_numpy(batch.targets)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        tell(step=step.item())
        if step % SAVE_EVERY == 0:
            dcp.save(state, checkpoint_id=folder / f"step-{step.item():08d}")
            if rank == 0:
                for old in saved(folder)[:-KEPT]:
                    shutil.rmtree(old)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
