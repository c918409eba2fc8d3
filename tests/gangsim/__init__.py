"""A deterministic simulator of the whole platform: real deciders and agents in virtual time.

See docs/concepts/simulation.md. `python -m gangsim --seed N` runs one seed.
"""
