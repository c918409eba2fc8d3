"""`gangline plan`: how a model of some size is best spread over a cluster, and what that costs."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Annotated, Any

import typer

from gangline import render
from gangline.errors import CliError, ExitCode
from gangline.layouts import speeds
from gangline.layouts.estimate import Cluster, Estimate, Link, Model, shaped
from gangline.layouts.search import Found, search
from gangline.output import Output
from gangline.render import Column
from gangline.session import Json, target_of
from gangline_schemas.gpus import memory_gb, peak_flops
from gangline_schemas.parallel import Parallel

_UNITS = {"": 1.0, "m": 1e6, "b": 1e9, "t": 1e12}
_KINDS = ("shard", "replicas", "tensor", "pipeline")


def plan(  # noqa: PLR0917 - options of a command are keywords
    context: typer.Context,
    params: Annotated[str, typer.Option(help="Parameters of the model, such as 300B.")],
    gpus: Annotated[int, typer.Option(min=1, max=16_384, help="GPUs of the gang.")],
    gpu: Annotated[str, typer.Option(help="Their model, such as h100-80gb.")] = "h100-80gb",
    gpus_per_node: Annotated[int, typer.Option(min=1, max=1024, help="GPUs of a node.")] = 8,
    batch_size: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Samples of a step, over all GPUs.")
    ] = 1024,
    seq_len: Annotated[int, typer.Option(min=1, max=10_000_000, help="Tokens of a sample.")] = 4096,
    vocabulary: Annotated[int, typer.Option(min=1, max=10_000_000, help="Tokens.")] = 128_000,
    layers: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Layers; give dim and heads too.")
    ] = None,
    dim: Annotated[int | None, typer.Option(min=1, max=10_000_000, help="Width.")] = None,
    heads: Annotated[int | None, typer.Option(min=1, max=100_000, help="Heads.")] = None,
    gpu_memory_gb: Annotated[
        float | None, typer.Option(min=0.001, help="GB of a GPU, of a model that is not known.")
    ] = None,
    tflops: Annotated[
        float | None, typer.Option(min=0.001, help="Its dense bfloat16 peak in TFLOP/s.")
    ] = None,
    node_gb_s: Annotated[
        float, typer.Option(min=0.001, help="GB/s of a GPU to others of its node, one way.")
    ] = 450.0,
    network_gb_s: Annotated[
        float, typer.Option(min=0.001, help="GB/s of a GPU to other nodes, one way.")
    ] = 50.0,
    memory_gb_s: Annotated[
        float | None, typer.Option(min=0.001, help="GB/s of the GPU's own memory.")
    ] = None,
    kernels: Annotated[
        float | None,
        typer.Option(min=0.01, max=1.0, help="Share of the peak at which matrices compute."),
    ] = None,
    reserve_gb: Annotated[
        float, typer.Option(min=0.0, help="GB of a GPU that no tensor gets.")
    ] = Cluster.reserve_gb,
    limit: Annotated[int, typer.Option("-n", min=1, max=1000, help="Layouts to show.")] = 5,
    json: Json = False,
) -> None:
    """Propose layouts of a dense model over a gang, with memory, traffic and time.

    Everything is an estimate; nothing is measured and no platform is needed.
    """
    out = Output(json=target_of(context, json=json).json)
    cluster = Cluster(
        gpus,
        min(gpus_per_node, gpus),
        _given(gpu_memory_gb, memory_gb(gpu), gpu, "--gpu-memory-gb"),
        _given(None if tflops is None else tflops * 1e12, peak_flops(gpu, "bf16"), gpu, "--tflops"),
        node_gb_s,
        network_gb_s,
        _given(memory_gb_s, speeds.memory_gb_s(gpu), gpu, "--memory-gb-s"),
        speeds.kernels(gpu) if kernels is None else kernels,
        reserve_gb,
    )
    model = _model(_count(params), (layers, dim, heads), seq_len, vocabulary)
    found = search(model, cluster, batch_size)
    if not found.fitting:
        raise _nothing_fits(found, model, cluster, batch_size)
    shown = found.fitting[:limit]
    data = {
        "model": asdict(model),
        "cluster": asdict(cluster),
        "layouts": [_data(one) for one in shown],
    }
    assumed = "" if layers is not None else ", assumed"
    out.show(data, "" if out.json else _text(shown, model, cluster, gpu, assumed))


def _given(option: float | None, known: float | None, gpu: str, name: str) -> float:
    value = option if option is not None else known
    if value is None:
        raise CliError(
            f"--gpu {gpu}: the planner does not know it", f"give {name} too", ExitCode.USAGE
        )
    return value


def _count(text: str) -> float:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([mbt]?)", text.replace("_", "").lower())
    count = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 1e5 <= count <= 1e14:
        raise CliError(
            f"--params {text}", "give a number from 100,000 up, such as 7B or 300B", ExitCode.USAGE
        )
    return count


def _model(
    params: float, shape: tuple[int | None, int | None, int | None], seq_len: int, vocabulary: int
) -> Model:
    layers, dim, heads = shape
    if layers is None and dim is None and heads is None:
        return shaped(params, seq_len, vocabulary)
    if layers is None or dim is None or heads is None:
        raise CliError("--layers, --dim and --heads belong together", code=ExitCode.USAGE)
    model = Model(params, layers, dim, heads, seq_len, vocabulary)
    if model.of_layer <= 0:
        raise CliError(
            f"--params {params:,.0f} is less than the embedding and the output have",
            "give more, or a smaller --vocabulary or --dim",
            ExitCode.USAGE,
        )
    return model


def _nothing_fits(found: Found, model: Model, cluster: Cluster, batch_size: int) -> CliError:
    least = found.smallest
    if least is None:
        return CliError(
            f"no layout divides {cluster.gpus} GPUs, {model.layers} layers and {batch_size} "
            "samples",
            "give a --batch-size or a number of GPUs that has more divisors",
            ExitCode.USAGE,
        )
    return CliError(
        f"it does not fit: the layout that needs least ({Parallel(**_parallel(least))}) needs "
        f"{least.memory.total:,.0f} GB on each GPU, and one has {cluster.memory_gb:g} GB",
        "give more GPUs, GPUs with more memory, or a smaller --batch-size or --seq-len",
        ExitCode.USAGE,
    )


def _parallel(one: Estimate) -> dict[str, int]:
    """The field `parallel` of the job file; the planner has no experts."""
    return {name: ways for name, ways in asdict(one.layout.shape).items() if name != "expert"}


def _data(one: Estimate) -> dict[str, Any]:
    return {
        "parallel": _parallel(one),
        "batch_size": one.layout.batch_size,
        "accumulation": one.layout.accumulation,
        "micro_batch": one.layout.micro_batch,
        "recompute": one.layout.recompute,
        "memory_gb": asdict(one.memory) | {"total": one.memory.total},
        "traffic": asdict(one.traffic),
        "compute_s": one.compute_s,
        "bubble_s": one.bubble_s,
        "exposed_s": one.exposed_s,
        "step_s": one.step_s,
        "mfu": one.mfu,
    }


def _text(
    shown: tuple[Estimate, ...], model: Model, cluster: Cluster, gpu: str, assumed: str
) -> str:
    first = shown[0]
    model_text = (
        f"{model.params / 1e9:,.4g} billion parameters{assumed}: {model.layers} layers of "
        f"width {model.dim:,}, {model.heads} heads"
    )
    cluster_text = (
        f"{render.count(cluster.gpus, gpu + ' GPU')}, {cluster.gpus_per_node} on a node, each "
        f"{cluster.memory_gb:g} GB and {cluster.peak_flops / 1e12:,.4g} TFLOP/s"
    )
    time_text = (
        f"computing {first.compute_s:.3g} s, pipeline's bubble {first.bubble_s:.3g} s, exposed "
        f"traffic {first.exposed_s:.3g} s"
    )
    lines = [
        render.labelled("model", model_text, 9),
        render.labelled(
            "batch", f"{first.layout.batch_size:,} samples of {model.seq_len:,} tokens", 9
        ),
        render.labelled("cluster", cluster_text, 9),
        "",
        render.listing(_COLUMNS, shown),
        "",
        "the first, on each GPU in each step:",
        render.labelled("  memory", f"{_memory(first)} GB", 11),
        render.labelled("  traffic", _traffic(first), 11),
        render.labelled("  time", time_text, 11),
        "",
        "in the job file:",
        *_job_lines(first, cluster.gpus),
    ]
    return "\n".join(lines)


_COLUMNS: tuple[Column[Estimate], ...] = (
    Column("REPLICAS", lambda one: str(one.layout.shape.replicas), right=True),
    Column("SHARD", lambda one: str(one.layout.shape.shard), right=True),
    Column("TENSOR", lambda one: str(one.layout.shape.tensor), right=True),
    Column("PIPELINE", lambda one: str(one.layout.shape.pipeline), right=True),
    Column("PASSES", lambda one: str(one.layout.accumulation), right=True),
    Column("RECOMPUTE", lambda one: "yes" if one.layout.recompute else "no"),
    Column("MEMORY", lambda one: f"{one.memory.total:.0f} GB", right=True),
    Column("STEP", lambda one: f"{one.step_s:.3g} s", right=True),
    Column("MFU", lambda one: f"{one.mfu:.0%}", right=True),
)


def _memory(one: Estimate) -> str:
    parts = ((name, value) for name, value in asdict(one.memory).items() if value)
    return ", ".join(f"{name} {value:.1f}" for name, value in parts)


def _traffic(one: Estimate) -> str:
    links: dict[str, Link] = {kind: getattr(one.traffic, kind) for kind in _KINDS}
    parts = [
        f"{kind} {link.gb:,.1f} GB {'in the node' if link.within_node else 'between nodes'} "
        f"({link.seconds:.3g} s)"
        for kind, link in links.items()
        if link.gb
    ]
    return ", ".join(parts) or "none"


def _job_lines(one: Estimate, gpus: int) -> list[str]:
    layout = one.layout
    settings = {
        "batch_size": layout.batch_size,
        "accumulation": layout.accumulation,
        "recompute": str(layout.recompute).lower(),
    }
    fields: dict[str, dict[str, Any]] = {
        "resources": {"gpus": gpus},
        "parallel": _parallel(one),
        "hyperparameters": settings,
    }
    return [
        f"  {field}: {{{', '.join(f'{name}: {value}' for name, value in values.items())}}}"
        for field, values in fields.items()
    ]
