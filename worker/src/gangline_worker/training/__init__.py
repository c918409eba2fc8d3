"""A small, readable trainer of byte-level transformers: FSDP2 or DDP, on CPUs or GPUs.

Start at `trainer.Trainer.train_step`. Run it with `python -m gangline_worker.training`.
"""
