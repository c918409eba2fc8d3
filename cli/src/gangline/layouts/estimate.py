"""Estimates of one layout: memory of a GPU, traffic and time of a step, of dense transformers.

Memory is that of the platform's trainer with bfloat16: float32 weights, AdamW, FSDP2. Sources:

- Activations: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
  2022. With attention that keeps no scores they are 34 bytes for each token, layer and unit of
  width. With full recomputation they are 2. Tensor ranks divide both (sequence parallelism).
- Norms, activations and the loss take as long as memory takes to move what they keep: Ivanov et
  al., "Data Movement Is All You Need", 2021.
- 1F1B and its bubble: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
  Clusters Using Megatron-LM", 2021.
- FLOP: Chowdhery et al., "PaLM", 2022, appendix B. They count the whole square of attention.
  Causal kernels compute about half of it, at about half of the share of the peak that matrices
  reach (Shah et al., "FlashAttention-3", 2024: 35 % for its forerunner on an H100).
- Collectives over n ranks in a ring send (n - 1) / n of the data. A ring enters a node through one
  adapter. A group with several ranks of a node has as many rings, so that it uses the adapters of
  all of them: NVIDIA, nccl-tests, doc/PERFORMANCE.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gangline_schemas.parallel import Shape

GB = 1e9
_WEIGHT, _GRADIENT, _ADAM, _HALF = 4, 4, 8, 2
"""Bytes of a parameter: float32 weights and gradients, two moments; bfloat16 for computing."""
_KEPT, _RECOMPUTED = 34, 2
_LOGIT = 8
"""Bytes of a logit: bfloat16, float32, and its gradient in bfloat16."""
_LAYERS_GATHERED = 2
"""FSDP2 gathers the next layer while one computes."""
_TENSOR_EXCHANGES = 8
"""Gathers and scatters of a layer's activations, forward and backward."""
_FORWARD, _BACKWARD = 2, 4
"""FLOP of a parameter and token."""
_MOVED_FORWARD, _MOVED_BACKWARD = 2, 3
"""How often a kept byte crosses the GPU's memory: written and read; read, and its gradient too."""
_ADAMW = 28
"""Bytes of a parameter that a step of AdamW moves: it reads four float32, and writes three."""
_SCORES = 2
"""Parameters that attention counts as, for each layer, position and unit of width."""


@dataclass(frozen=True)
class Model:
    """A dense transformer. `params` counts the embedding and the output."""

    params: float
    layers: int
    dim: int
    heads: int
    seq_len: int
    vocabulary: int

    @property
    def embedding(self) -> float:
        """Parameters of the embedding, and as many of the output."""
        return float(self.vocabulary * self.dim)

    @property
    def of_layer(self) -> float:
        """Parameters of one layer."""
        return (self.params - 2 * self.embedding) / self.layers

    @property
    def flops_per_token(self) -> float:
        """Forward and backward, without recomputation."""
        matrices = self.params - self.embedding
        return (_FORWARD + _BACKWARD) * (matrices + self.layers * self.scores)

    @property
    def scores(self) -> float:
        """Parameters that the attention of one layer would have if its products were matrices."""
        return float(_SCORES * self.dim * self.seq_len)


@dataclass(frozen=True)
class Cluster:
    """Equal GPUs. Speeds are those of one GPU in one direction."""

    gpus: int
    gpus_per_node: int
    memory_gb: float
    peak_flops: float
    node_gb_s: float
    network_gb_s: float
    memory_gb_s: float
    kernels: float
    """The share of the peak at which matrices and attention compute."""
    reserve_gb: float = 6.0
    """CUDA's context, buffers of NCCL, and memory that lies in pieces."""


@dataclass(frozen=True)
class Layout:
    """How the model is spread, and how a batch of `batch_size` samples is cut."""

    shape: Shape
    batch_size: int
    accumulation: int
    recompute: bool

    @property
    def micro_batch(self) -> int:
        """Samples of one pass of a data rank."""
        return self.batch_size // self.shape.data_ranks // self.accumulation


@dataclass(frozen=True)
class Memory:
    """GB of the fullest GPU."""

    weights: float
    optimizer: float
    gradients: float
    gathered: float
    activations: float
    reserve: float

    @property
    def total(self) -> float:
        """All parts."""
        return (
            self.weights + self.optimizer + self.gradients + self.gathered
            + self.activations + self.reserve
        )  # fmt: skip


@dataclass(frozen=True)
class Link:
    """The bytes that one kind of parallelism sends in a step from each GPU, and over which link."""

    gb: float
    seconds: float
    within_node: bool


@dataclass(frozen=True)
class Traffic:
    """The exchanges of one step."""

    shard: Link
    replicas: Link
    tensor: Link
    pipeline: Link


@dataclass(frozen=True)
class Estimate:
    """A layout with its memory and time."""

    layout: Layout
    memory: Memory
    traffic: Traffic
    compute_s: float
    bubble_s: float
    exposed_s: float
    """Exchanges that no computing hides."""
    mfu: float

    @property
    def step_s(self) -> float:
        """One optimizer step."""
        return self.compute_s + self.bubble_s + self.exposed_s


def estimate(model: Model, cluster: Cluster, layout: Layout) -> Estimate:
    """Memory and time of a layout. It must divide the model and the batch, as in search.py."""
    traffic = _traffic(model, cluster, layout)
    shape, passes = layout.shape, layout.accumulation
    needed = model.flops_per_token * layout.batch_size * model.seq_len / cluster.gpus
    usual, last = _pass_seconds(model, cluster, layout)
    update = _ADAMW * _on_gpu(model, shape) / shape.shard / (cluster.memory_gb_s * GB)
    compute_s = passes * last.total + update
    blocking_s = traffic.tensor.seconds
    bubble_s = (shape.pipeline - 1) * (usual.total + blocking_s / passes)
    exposed_s = blocking_s + traffic.pipeline.seconds + _outlasting(layout, traffic, last)
    step_s = compute_s + bubble_s + exposed_s
    return Estimate(
        layout,
        _memory(model, cluster, layout),
        traffic,
        compute_s,
        bubble_s,
        exposed_s,
        mfu=needed / (step_s * cluster.peak_flops),
    )


@dataclass(frozen=True)
class _Pass:
    """Seconds of one pass over a stage."""

    forward: float
    backward: float

    @property
    def total(self) -> float:
        return self.forward + self.backward


def _pass_seconds(model: Model, cluster: Cluster, layout: Layout) -> tuple[_Pass, _Pass]:
    """Of a usual stage, and of the last one: it has the output, so that the others wait for it."""
    tokens = layout.micro_batch * model.seq_len / layout.shape.tensor
    flops_s, bytes_s = cluster.peak_flops * cluster.kernels, cluster.memory_gb_s * GB

    def passed(parameters: float, kept: float, again: int = 0) -> _Pass:
        multiplied, moved = parameters * tokens / flops_s, kept * tokens / bytes_s
        forward = _FORWARD * multiplied + _MOVED_FORWARD * moved
        backward = _BACKWARD * multiplied + _MOVED_BACKWARD * moved
        return _Pass(forward, backward + again * forward)

    layers = model.layers / layout.shape.pipeline
    usual = passed(
        layers * (model.of_layer + model.scores), layers * model.dim * _KEPT, int(layout.recompute)
    )
    output = passed(model.embedding, model.vocabulary * _LOGIT)
    last = _Pass(usual.forward + output.forward, usual.backward + output.backward)
    return usual, last


def _outlasting(layout: Layout, traffic: Traffic, stage: _Pass) -> float:
    """Seconds of the shards' and replicas' exchanges that outlast the computing beside them.

    Weights are gathered beside each pass, or with stages beside the first one. Gradients are sent
    beside the last pass.
    """
    passes = layout.accumulation if layout.shape.pipeline == 1 else 1
    scattered = _GRADIENT / (_GRADIENT + _HALF * _gathers(layout))
    gradients = traffic.shard.seconds * scattered + traffic.replicas.seconds
    weights = traffic.shard.seconds * (1 - scattered)
    return max(0.0, weights - passes * stage.total) + max(0.0, gradients - stage.backward)


def _gathers(layout: Layout) -> int:
    """How often a step gathers the weights: forward and backward, and stages once."""
    return 2 * layout.accumulation if layout.shape.pipeline == 1 else 1


def _on_gpu(model: Model, shape: Shape) -> float:
    """Parameters of the largest stage on one tensor rank, before they are sharded."""
    ends = 2 if shape.pipeline == 1 else 1
    layers = model.layers / shape.pipeline
    return (layers * model.of_layer + ends * model.embedding) / shape.tensor


def _memory(model: Model, cluster: Cluster, layout: Layout) -> Memory:
    shape, own = layout.shape, _on_gpu(model, layout.shape)
    passes_over = layout.accumulation > 1 or shape.pipeline > 1
    largest = max(model.of_layer, model.embedding) / shape.tensor
    copies = shape.shard == shape.tensor == shape.pipeline == 1
    if copies or shape.pipeline > 1:
        gathered = _HALF * own  # DDP's autocast, and stages that stay gathered
    else:
        gathered = _HALF * largest * min(_LAYERS_GATHERED, model.layers)
    # Gradients are reduced in the last pass: until then each rank has them whole.
    gradients = _GRADIENT * own / (1 if passes_over else shape.shard)
    if not passes_over:
        gathered += _GRADIENT * largest
    return Memory(
        weights=_WEIGHT * own / shape.shard / GB,
        optimizer=_ADAM * own / shape.shard / GB,
        gradients=gradients / GB,
        gathered=gathered / GB,
        activations=_activations(model, layout) / GB,
        reserve=cluster.reserve_gb,
    )


def _activations(model: Model, layout: Layout) -> float:
    """Bytes of the fuller one of the first and the last stage."""
    shape = layout.shape
    unit = layout.micro_batch * model.seq_len * model.dim / shape.tensor
    layers = model.layers / shape.pipeline
    kept = unit * layers * (_RECOMPUTED if layout.recompute else _KEPT)
    works = unit * _KEPT if layout.recompute else 0.0
    logits = layout.micro_batch * model.seq_len * model.vocabulary * _LOGIT / shape.tensor
    in_flight = min(shape.pipeline, layout.accumulation)
    last = kept + works + logits
    return last if shape.pipeline == 1 else max(kept * in_flight + works, last)


def _traffic(model: Model, cluster: Cluster, layout: Layout) -> Traffic:
    shape, passes, own = layout.shape, layout.accumulation, _on_gpu(model, layout.shape)
    sharded = _rest(shape.shard) * own * (_HALF * _gathers(layout) + _GRADIENT)
    copied = 2 * _rest(shape.replicas) * _GRADIENT * own / shape.shard
    wide = layout.micro_batch * model.seq_len * model.dim * _HALF
    exchanges = _TENSOR_EXCHANGES * (3 / 2 if layout.recompute else 1)
    layers = model.layers / shape.pipeline
    split = _rest(shape.tensor) * wide * exchanges * layers * passes
    handed = 0.0 if shape.pipeline == 1 else 2 * wide / shape.tensor * passes
    return Traffic(
        shard=_ring(cluster, sharded, shape.shard, apart=shape.tensor),
        replicas=_ring(cluster, copied, shape.replicas, apart=shape.tensor * shape.shard),
        tensor=_ring(cluster, split, shape.tensor, apart=1),
        pipeline=_link(cluster, handed, 1, within_node=cluster.gpus <= cluster.gpus_per_node),
    )


def _rest(ranks: int) -> float:
    return (ranks - 1) / ranks


def _ring(cluster: Cluster, sent: float, ranks: int, *, apart: int) -> Link:
    """Over a group of `ranks` that are `apart` in the order of ranks."""
    on_a_node = math.gcd(ranks, max(1, cluster.gpus_per_node // apart))
    near = ranks * apart <= cluster.gpus_per_node
    return _link(cluster, sent, on_a_node, within_node=near)


def _link(cluster: Cluster, sent: float, adapters: int, *, within_node: bool) -> Link:
    between = min(cluster.node_gb_s, adapters * cluster.network_gb_s)
    speed = cluster.node_gb_s if within_node else between
    return Link(sent / GB, sent / GB / speed, within_node)


def shaped(params: float, seq_len: int, vocabulary: int) -> Model:
    """A model of about so many parameters, 128 times as wide as it is deep, in heads of 128.

    Layers have 12 dim^2 parameters. Layers are a multiple of 8, or few, so that stages divide them.
    """
    dim = (params * 128 / 12) ** (1 / 3)
    step = 1024 if dim >= 4096 else 512 if dim >= 1024 else 128
    width = max(step, round(dim / step) * step)
    depth = max(1.0, (params - 2 * vocabulary * width) / (12 * width * width))
    layers = max(1, round(depth / 8) * 8 if depth >= 16 else round(depth))
    return Model(params, layers, width, max(1, math.ceil(width / 128)), seq_len, vocabulary)
