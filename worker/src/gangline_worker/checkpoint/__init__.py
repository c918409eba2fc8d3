"""Asynchronous, sharded, verified checkpoints in the layout of `gangline_schemas.checkpoint`.

Saving: `local.holdings` (which block of each tensor a rank holds and writes) ->
`layout.lay_out` (where it lies in the rank's file) -> `saver.AsyncSaver` (copy at a step boundary,
write in the background). Loading: `loader.Checkpoint`. For user scripts: `public`.
"""
