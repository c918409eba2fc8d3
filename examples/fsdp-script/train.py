"""FSDP2 in a script of your own: reports, stops in good order, checkpoints at any number of GPUs.

Outside of Gangline (torchrun --nproc-per-node 2 train.py) it trains alike and saves nothing.
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset

from gangline_worker import (
    doing,
    hyperparameters,
    prepare,
    report,
    restore,
    save,
    should_checkpoint,
    should_stop,
)


class Batches(Dataset[torch.Tensor]):
    """This rank's part of the samples of a step: the same samples however many ranks there are."""

    def __init__(self, size: int, rank: int, ranks: int) -> None:
        self.size, self.rank, self.ranks = size, rank, ranks

    def __getitem__(self, step: int) -> torch.Tensor:
        whole = torch.rand(self.size, 8, generator=torch.Generator().manual_seed(step))
        return whole.chunk(self.ranks)[self.rank]


def any_rank(here: object, device: torch.device) -> bool:
    """Ranks receive a request at different moments, so all do what any of them has received."""
    anywhere = torch.tensor(int(bool(here)), device=device)
    dist.all_reduce(anywhere, op=dist.ReduceOp.MAX)
    return bool(anywhere.item())


def main() -> None:
    settings = {"steps": 40, "batch": 64, "save_every": 10} | hyperparameters()
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
    fully_shard(model.to(device), mesh=init_device_mesh(device.type, (ranks,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    first = 1
    if "GANGLINE_RESUME_FROM" in os.environ:
        weights, moments = get_state_dict(model, optimizer)  # this rank's shards, to be filled
        restored = restore(into={"model": weights, "optimizer": moments})
        set_state_dict(
            model,
            optimizer,
            model_state_dict=restored.state["model"],
            optim_state_dict=restored.state["optimizer"],
        )
        first = restored.step + 1
        if rank == 0:
            print(f"resumed after step {restored.step}", flush=True)

    steps = range(first, settings["steps"] + 1)  # resumes in the data, too
    batches = Batches(settings["batch"], rank, ranks)
    loader = DataLoader(batches, batch_size=None, sampler=steps, num_workers=2)
    weights, moments = get_state_dict(model, optimizer)
    prepare({"model": weights, "optimizer": moments})  # what save cannot take, it says here
    doing("training")
    for step, batch in zip(steps, loader, strict=True):
        x = batch.to(device)
        loss = torch.mean((model(x) - x.sin().sum(1, keepdim=True)) ** 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        mean = loss.detach().clone()
        dist.all_reduce(mean)
        mean = mean.item() / ranks
        if rank == 0:
            report({"loss": mean}, step)

        stop = any_rank(should_stop(), device)
        due = any_rank(should_checkpoint(), device) or step % settings["save_every"] == 0
        last = step == settings["steps"]
        if due or stop or last:  # every rank, at one step
            weights, moments = get_state_dict(model, optimizer)
            save({"model": weights, "optimizer": moments}, step, {"loss": mean})
        if stop:
            break
    if rank == 0:
        print(f"loss {mean:.6f} after step {step}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
