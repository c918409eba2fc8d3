"""Runs from and to other formats: Parquet, MLflow, W&B, TensorBoard."""
