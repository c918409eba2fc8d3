"""Layouts of a dense model over a gang: what each needs and costs, estimated. Pure."""
