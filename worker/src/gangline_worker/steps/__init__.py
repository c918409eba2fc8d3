"""Steps of pipelines that need no program of their own: `python -m gangline_worker.steps.NAME`.

They read `GANGLINE_IN` and leave their outputs in `GANGLINE_OUT`. The model is that of the
platform's trainer, as its hyperparameters say; docs/reference/pipeline-file.md lists them.
"""
