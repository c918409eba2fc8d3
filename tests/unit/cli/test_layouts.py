"""`gangline plan`: estimates by hand, layouts that the job file accepts, the guide's examples."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gangline.layouts.estimate import Cluster, Layout, Model, estimate, shaped
from gangline.layouts.search import search
from gangline_schemas.gpus import memory_gb
from gangline_schemas.job import JobSpec
from gangline_schemas.parallel import Shape
from gangline_worker.training.config import TrainConfig
from gangline_worker.training.layout import lay_out
from support.harnesses.cli_run import Runner, runner

GUIDE = (Path(__file__).parents[3] / "docs" / "guides" / "plan-layouts.md").read_text()
EXAMPLES = re.findall(r"^```\n\$ gangline (plan[^\n]*)\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
SMALL = Model(params=1.2e9, layers=8, dim=1000, heads=8, seq_len=500, vocabulary=100_000)
"""An embedding and an output of 0.1e9 each, and layers of 0.125e9."""
TWO_NODES = Cluster(
    gpus=16, gpus_per_node=8, memory_gb=80, peak_flops=1e15, node_gb_s=1000, network_gb_s=50,
    memory_gb_s=2000, kernels=0.5, reserve_gb=2.0,
)  # fmt: skip


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Runner:
    return runner(capsys)


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_the_guides_examples_are_what_it_says(run: Runner, command: str, shown: str) -> None:
    done = run(*command.split())
    assert (done.code, done.out) == (0, shown)
    assert max(len(line) for line in done.out.splitlines()) <= 80


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 2


def test_shards_over_two_nodes_by_hand() -> None:
    found = estimate(SMALL, TWO_NODES, Layout(Shape(shard=16), 64, 1, recompute=False))
    assert found.layout.micro_batch == 4
    memory = found.memory
    assert memory.weights == pytest.approx(4 * 1.2 / 16)
    assert memory.optimizer == pytest.approx(8 * 1.2 / 16)
    assert memory.gradients == pytest.approx(4 * 1.2 / 16)
    # Two layers in bfloat16, and the gradient of one, before they are divided.
    assert memory.gathered == pytest.approx(2 * 2 * 0.125 + 4 * 0.125)
    assert memory.activations == pytest.approx(
        (34 * 4 * 500 * 1000 * 8 + 8 * 4 * 500 * 100_000) / 1e9
    )
    assert memory.total == pytest.approx(
        memory.weights + memory.optimizer + memory.gradients + memory.gathered
        + memory.activations + 2.0
    )  # fmt: skip
    # Weights are gathered twice in bfloat16, gradients scattered in float32.
    assert found.traffic.shard.gb == pytest.approx(15 / 16 * 1.2 * (2 * 2 + 4))
    # Eight ranks of a node share its eight adapters.
    assert found.traffic.shard.seconds == pytest.approx(15 / 16 * 1.2 * 8 / (8 * 50))
    assert (found.traffic.tensor.gb, found.traffic.pipeline.gb) == (0.0, 0.0)
    flops = (6 * 1.1e9 + 12 * 8 * 1000 * 500) * 64 * 500 / 16
    moved = 5 * (34 * 1000 * 8 + 8 * 100_000) * 64 * 500 / 16
    update = 28 * 1.2e9 / 16
    assert found.compute_s == pytest.approx(flops / 0.5e15 + (moved + update) / 2e12)
    assert found.exposed_s == 0.0  # all beside the computing
    assert found.step_s == pytest.approx(found.compute_s)
    assert found.mfu == pytest.approx(flops / 1e15 / found.step_s)


def test_gradients_are_sent_beside_the_last_pass_alone() -> None:
    slow = replace(TWO_NODES, network_gb_s=5)
    found = estimate(SMALL, slow, Layout(Shape(shard=16), 64, 4, recompute=False))
    one_way = 15 / 16 * 1.2 / (8 * 5)
    assert found.traffic.shard.seconds == pytest.approx(one_way * (4 * 2 * 2 + 4))
    tokens = 500
    backward = 2 / 3 * (6 * 1.1e9 + 12 * 8 * 1000 * 500) * tokens / 0.5e15
    backward += 3 * (34 * 1000 * 8 + 8 * 100_000) * tokens / 2e12
    passes = found.compute_s - 28 * 1.2e9 / 16 / 2e12
    gathers = one_way * 4 * 2 * 2
    assert found.exposed_s == pytest.approx(gathers - passes + one_way * 4 - backward)


@pytest.mark.parametrize(
    ("shape", "gb_s"),
    [
        (Shape(shard=16), 400),  # eight of them on a node
        (Shape(shard=8, tensor=2), 200),
        (Shape(shard=2, tensor=8), 50),
        (Shape(shard=8, replicas=2), 1000),  # within a node
        (Shape(shard=4, pipeline=4), 1000),
    ],
)
def test_a_group_uses_the_adapters_of_its_ranks_of_a_node(shape: Shape, gb_s: float) -> None:
    link = estimate(SMALL, TWO_NODES, Layout(shape, 64, 1, recompute=False)).traffic.shard
    assert link.gb / link.seconds == pytest.approx(gb_s)


def test_a_group_that_ends_amid_a_node_has_fewer_adapters() -> None:
    cluster = replace(TWO_NODES, gpus=24)
    shape = Shape(shard=12, replicas=2)
    link = estimate(SMALL, cluster, Layout(shape, 48, 1, recompute=False)).traffic.shard
    assert link.gb / link.seconds == pytest.approx(4 * 50)


def test_a_stage_sends_its_activations_through_its_own_adapter() -> None:
    shape = Shape(shard=4, pipeline=4)  # two stages on a node
    link = estimate(SMALL, TWO_NODES, Layout(shape, 64, 4, recompute=False)).traffic.pipeline
    assert link.gb / link.seconds == pytest.approx(50)


def test_tensor_and_stages_by_hand() -> None:
    shape = Shape(replicas=2, tensor=4, pipeline=2)
    found = estimate(SMALL, TWO_NODES, Layout(shape, 64, 8, recompute=True))
    assert found.layout.micro_batch == 4
    own = (4 * 0.125 + 0.1) / 4  # half of the layers and one end, on one of four tensor ranks
    memory, traffic = found.memory, found.traffic
    assert memory.weights == pytest.approx(4 * own)
    assert memory.gradients == pytest.approx(4 * own)  # whole until the last pass
    assert memory.gathered == pytest.approx(2 * own)
    unit = 4 * 500 * 1000 / 4 / 1e9
    last_stage = unit * (4 * 2 + 34) + 4 * 500 * 100_000 * 8 / 4 / 1e9
    assert memory.activations == pytest.approx(last_stage)  # its logits are the most
    assert traffic.replicas.gb == pytest.approx(2 * 1 / 2 * 4 * own)
    assert traffic.replicas.within_node  # two copies of four tensor ranks
    wide = 2 * 4 * 500 * 1000 / 1e9
    assert traffic.tensor.gb == pytest.approx(3 / 4 * wide * 12 * 4 * 8)
    assert traffic.pipeline.gb == pytest.approx(2 * wide / 4 * 8)
    assert not traffic.pipeline.within_node
    # The last stage has the output, which is not computed again, and the first one waits for it.
    tokens = 64 * 500 / 2 / 4
    layers = 4 * (0.125e9 + 2 * 1000 * 500) * 8 * tokens / 0.5e15
    layers += 4 * 34 * 1000 * 7 * tokens / 2e12
    output = 6 * 0.1e9 * tokens / 0.5e15 + 8 * 100_000 * 5 * tokens / 2e12
    assert found.compute_s == pytest.approx(layers + output + 28 * own * 1e9 / 2e12)
    assert found.bubble_s == pytest.approx((layers + traffic.tensor.seconds) / 8)


def test_each_kind_does_what_it_is_for() -> None:
    def of(shape: Shape, passes: int = 1, *, recompute: bool = False) -> Any:
        return estimate(SMALL, TWO_NODES, Layout(shape, 64, passes, recompute=recompute))

    sharded = [of(Shape(replicas=16 // shard, shard=shard)) for shard in (2, 4, 8, 16)]
    assert all(a.memory.total > b.memory.total for a, b in pairwise(sharded))
    plain, again = of(Shape(shard=16)), of(Shape(shard=16), recompute=True)
    assert again.memory.activations < plain.memory.activations
    # All but the output and the update, a forward pass of the layers more.
    assert plain.compute_s * 1.25 < again.compute_s < plain.compute_s * 4 / 3
    many, few = of(Shape(shard=4, pipeline=4), 16), of(Shape(shard=4, pipeline=4), 4)
    assert many.bubble_s < few.bubble_s


@pytest.mark.parametrize(("gpus", "params"), [(512, 300e9), (64, 70e9), (8, 7e9), (24, 13e9)])
def test_a_large_model_fits_and_the_job_file_accepts_each_layout(gpus: int, params: float) -> None:
    model = shaped(params, 4096, 128_000)
    cluster = Cluster(gpus, 8, 80, 989.4e12, 450, 50, 3350, 0.5)
    found = search(model, cluster, batch_size=96 if gpus == 24 else 1024).fitting
    assert found
    steps = [one.step_s for one in found]
    assert min(steps) >= max(steps[0] / 1.01, 0)
    for one in found:
        shape, layout = one.layout.shape, one.layout
        assert shape.ranks == gpus
        assert one.memory.total <= 80
        assert 0 < one.mfu <= cluster.kernels + 1e-9
        settings = {
            "batch_size": layout.batch_size, "accumulation": layout.accumulation,
            "recompute": layout.recompute,
        }  # fmt: skip
        spec = JobSpec.model_validate({
            "name": "a", "team": "nlp", "command": ["python", "-m", "gangline_worker.training"],
            "resources": {"gpus": gpus}, "hyperparameters": settings,
            "parallel": {
                "replicas": shape.replicas, "shard": shape.shard, "tensor": shape.tensor,
                "pipeline": shape.pipeline,
            },
        })  # fmt: skip
        config = TrainConfig(
            dim=4096, heads=32, layers=model.layers, seq_len=4096, parallel=spec.parallel,
            **settings,
        )  # fmt: skip
        assert lay_out(config, 0, gpus).shape == shape


def test_assumed_shapes_have_about_the_parameters_that_were_asked_for() -> None:
    for params in (1e9, 7e9, 70e9, 300e9, 1e12):
        model = shaped(params, 4096, 128_000)
        built = 12 * model.layers * model.dim**2 + 2 * model.embedding
        assert built == pytest.approx(params, rel=0.12)
        assert model.dim % model.heads == 0


def test_json_has_all_parts(run: Runner) -> None:
    found = run("plan", "--params", "7B", "--gpus", "8", "-n", "1", "--json").json
    (one,) = found["layouts"]
    parts = one["memory_gb"]
    assert parts["total"] == pytest.approx(sum(parts.values()) - parts["total"])
    assert one["step_s"] == pytest.approx(one["compute_s"] + one["bubble_s"] + one["exposed_s"])
    assert found["model"]["layers"] == 32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--params", "300B", "--gpus", "8"), "GB on each GPU, and one has 80 GB"),
        (("--params", "7B", "--gpus", "7"), "no layout divides 7 GPUs"),
        (("--params", "seven", "--gpus", "8"), "--params seven"),
        (("--params", "7B", "--gpus", "8", "--gpu", "abacus"), "--gpu abacus"),
        (
            ("--params", "7B", "--gpus", "8", "--gpu", "v100-32gb", "--tflops", "125"),
            "give --memory-gb-s too",
        ),
        (("--params", "7B", "--gpus", "8", "--layers", "32"), "belong together"),
        (
            ("--params", "1B", "--gpus", "8", "--layers", "8", "--dim", "8192", "--heads", "64"),
            "less than the embedding",
        ),
    ],
)
def test_a_question_without_an_answer_says_why(
    run: Runner, arguments: tuple[str, ...], message: str
) -> None:
    done = run("plan", *arguments)
    assert done.code == 2
    assert message in done.err


def test_the_memory_of_a_gpu_follows_from_its_exact_name() -> None:
    assert (memory_gb("a100-40gb"), memory_gb("h200"), memory_gb("l40s")) == (40, 141, 48)
    assert (memory_gb("a100"), memory_gb("abacus")) == (None, None)
