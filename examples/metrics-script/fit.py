"""Fit a polynomial; report each step, save now and then, and stop in good order when asked to.

Outside of Gangline (python fit.py) all calls of gangline_worker work and go nowhere.
"""

import time

import torch

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


def main() -> None:
    settings = {"steps": 60, "lr": 0.05} | hyperparameters()
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 256)
    target = 1.5 * x**3 - 0.5 * x
    weights = torch.zeros(4, requires_grad=True)

    first = 1
    if restored := restore():  # the newest committed checkpoint, verified; None on a first start
        weights.data.copy_(restored.state["weights"])
        first = restored.step + 1
        print(f"resumed after step {restored.step}", flush=True)

    prepare({"weights": weights.data})  # what save cannot take, it says here
    doing("training")  # from now on a hang is distinguished from a slow step
    for step in range(first, settings["steps"] + 1):
        powers = torch.stack([x**n for n in range(4)])
        loss = torch.mean((weights @ powers - target) ** 2)
        (gradient,) = torch.autograd.grad(loss, weights)
        weights.data -= settings["lr"] * gradient
        report({"loss": loss.item(), "grad_norm": gradient.norm().item()}, step)

        reason = should_stop()  # preempted, cancelled, ...: there are stop_grace_seconds to save
        last = step == settings["steps"]
        if should_checkpoint() or last or reason:
            save({"weights": weights.data}, step, {"loss": loss.item()})
        if last:
            print(f"loss {loss.item():.5f} after {step} steps", flush=True)
        elif reason:
            print(f"stopping after step {step}: {reason}", flush=True)
            break
        time.sleep(0.05)  # stands for real work


if __name__ == "__main__":
    main()
