"""The models that gangs train in benchmarks: settings of the trainer."""

from __future__ import annotations

SMALL = {
    "dim": 128, "layers": 4, "heads": 4, "seq_len": 128, "batch_size": 16, "lr": 0.004,
    "steps": 1_000_000, "data_max_bytes": 4_000_000,
}  # fmt: skip
"""0.87 M parameters: the demo's model."""
LARGE = {
    "dim": 1056, "layers": 10, "heads": 8, "seq_len": 64, "batch_size": 4, "lr": 0.001,
    "steps": 1_000_000, "data_max_bytes": 400_000,
}  # fmt: skip
"""134 M parameters; 1.61 GB with AdamW's state."""
GPU = {
    "dim": 1536, "layers": 20, "heads": 12, "seq_len": 1024, "batch_size": 32, "lr": 0.0003,
    "steps": 1_000_000, "data_max_bytes": 4_000_000,
}  # fmt: skip
"""567 M parameters, of which a step fills a GPU; 6.8 GB with AdamW's state."""
