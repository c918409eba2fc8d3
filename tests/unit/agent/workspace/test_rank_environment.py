"""How often a rank is to save, and what follows a bad loss, is in its environment."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gangline_schemas.events.workers import SampleRange
from gangline_schemas.failure_policy import OnNan, TrainingPolicy
from gangline_schemas.job import JobSpec
from gangline_schemas.job_pods import pod_domain, pod_host
from gangline_schemas.resources import Resources
from gangline_worker.agent.host.cdi import GivenDevices
from gangline_worker.agent.images.gang_images import GangImage
from gangline_worker.agent.workspace.environment import network_variables, rank_environment
from gangline_worker.data.left_out import LEFT_OUT_ENV, left_out_of_job
from gangline_worker.reporting import TRAINING_ENV
from gangline_worker.training.layout import gang_sizes
from support.builders.checkpoints import allocated, ref
from support.builders.gang_paths import gang_paths


@pytest.mark.parametrize(("advised_s", "expected_s"), [(None, 600.0), (414.0, 414.0)])
def test_the_interval_is_the_specs_unless_another_was_advised(
    tmp_path: Path, advised_s: float | None, expected_s: float
) -> None:
    allocation = allocated().model_copy(update={"checkpoint_interval_s": advised_s})
    paths = gang_paths(tmp_path)
    found = rank_environment(
        allocation, allocation.nodes[0], 0, paths, gpus="", token="t", secrets={}
    )
    assert float(found["GANGLINE_CHECKPOINT_INTERVAL_S"]) == expected_s


def test_a_rank_without_a_gpu_sees_none_and_has_its_cpus(tmp_path: Path) -> None:
    gang = allocated()
    parts = tuple(
        gang.nodes[0].model_copy(update={"node_id": f"n{rank}", "gpus": (), "first_rank": rank})
        for rank in range(2)
    )
    need = Resources.model_validate({"gpus": 0, "cpus": 6.5, "memory_gb": 1, "nodes": 2})
    spec = gang.spec.model_copy(update={"resources": need})
    gang = gang.model_copy(update={"nodes": parts, "spec": spec, "world_size": 2})
    paths = gang_paths(tmp_path)
    found = rank_environment(gang, parts[1], 0, paths, gpus="", token="t", secrets={})
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    assert [found[name] for name in names] == ["1", "2", "0", "1", "1"]
    assert (found["CUDA_VISIBLE_DEVICES"], found["OMP_NUM_THREADS"]) == ("", "6")


def test_caches_outlive_the_attempt_unless_the_job_wants_others(tmp_path: Path) -> None:
    paths = gang_paths(tmp_path)
    for own in ({}, {"XDG_CACHE_HOME": "/scratch"}):
        allocation = allocated()
        spec = allocation.spec.model_copy(update={"env": own})
        given = allocation.model_copy(update={"spec": spec})
        found = rank_environment(given, given.nodes[0], 0, paths, gpus="", token="t", secrets={})
        kept = str(tmp_path / "checkpoints" / ".cache")
        assert found["XDG_CACHE_HOME"] == own.get("XDG_CACHE_HOME", kept)


def test_what_follows_a_loss_that_is_not_finite_is_what_the_job_says(tmp_path: Path) -> None:
    paths = gang_paths(tmp_path)
    policy = TrainingPolicy(on_nan=OnNan(skip=0))
    for training in (None, policy):
        allocation = allocated()
        spec = allocation.spec.model_copy(update={"training": training})
        allocation = allocation.model_copy(update={"spec": spec})
        found = rank_environment(
            allocation, allocation.nodes[0], 0, paths, gpus="", token="t", secrets={}
        )
        told = TrainingPolicy.decode(found.get(TRAINING_ENV, "{}"))
        assert told == (training or TrainingPolicy())


def test_the_ranks_know_which_samples_their_job_goes_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = gang_paths(tmp_path)
    for samples in ((), (SampleRange(first=16, count=8), SampleRange(first=40, count=1))):
        given = allocated().model_copy(update={"left_out": samples})
        found = rank_environment(given, given.nodes[0], 0, paths, gpus="", token="t", secrets={})
        assert (LEFT_OUT_ENV in found) == bool(samples)
        monkeypatch.setenv(LEFT_OUT_ENV, found.get(LEFT_OUT_ENV, ""))
        assert left_out_of_job().ranges == samples


@pytest.mark.parametrize(
    ("resources", "parallel", "sizes"),
    [
        ({"gpus": 4}, None, []),
        ({"gpus": 4, "min_gpus": 2}, None, [2, 3, 4]),
        ({"gpus": 8, "min_gpus": 2, "gpu_counts": [2, 4, 8]}, None, [2, 4, 8]),
        ({"workers": 3, "gpus_per_worker": 2, "min_gpus": 2}, None, [2, 4, 6]),
        ({"gpus": 8, "min_gpus": 4}, {"tensor": 4}, [4, 8]),
    ],
)
def test_the_trainer_knows_which_sizes_its_gang_may_have(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    resources: dict[str, Any],
    parallel: dict[str, Any] | None,
    sizes: list[int],
) -> None:
    allocation = allocated()
    spec = JobSpec.model_validate(
        {"name": "a", "team": "t", "run": "x", "resources": resources, "parallel": parallel}
    )
    paths = gang_paths(tmp_path)
    given = allocation.model_copy(update={"spec": spec})
    found = rank_environment(given, given.nodes[0], 0, paths, gpus="", token="t", secrets={})
    monkeypatch.delenv("GANGLINE_RESOURCES", raising=False)
    if sizes:
        monkeypatch.setenv("GANGLINE_RESOURCES", found["GANGLINE_RESOURCES"])
    assert ("GANGLINE_RESOURCES" in found) == bool(sizes)
    assert list(gang_sizes()) == sizes


def test_the_ranks_know_their_strategy_unless_it_is_their_own(tmp_path: Path) -> None:
    paths = gang_paths(tmp_path)
    for strategy, named in (("ddp", "ddp"), ("deepspeed", "deepspeed"), ("custom", None)):
        gang = allocated()
        spec = gang.spec.model_copy(update={"strategy": strategy})
        gang = gang.model_copy(update={"spec": spec})
        found = rank_environment(gang, gang.nodes[0], 0, paths, gpus="", token="t", secrets={})
        assert found.get("GANGLINE_STRATEGY") == named


def test_the_ranks_know_which_data_their_job_was_admitted_with(tmp_path: Path) -> None:
    allocation = allocated()
    paths = gang_paths(tmp_path)
    for named in (None, "corpus@xxh3-0f343b0931126a20f133d67c2b018a3b"):
        spec = allocation.spec.model_copy(update={"data_snapshot": named})
        given = allocation.model_copy(update={"spec": spec})
        found = rank_environment(given, given.nodes[0], 0, paths, gpus="", token="t", secrets={})
        assert found.get("GANGLINE_DATA_SNAPSHOT") == named


def test_ranks_know_whether_checkpoints_are_to_be_promoted_and_whether_they_validate_one(
    tmp_path: Path,
) -> None:
    paths = gang_paths(tmp_path)
    told = {"GANGLINE_PROMOTE": "final", "GANGLINE_VALIDATE": "1"}
    for given, names in (
        (allocated(), set()),
        (allocated(promote="final"), {"GANGLINE_PROMOTE"}),
        (allocated(resume=ref(1, 20), validates=True), {"GANGLINE_VALIDATE"}),
    ):
        found = rank_environment(given, given.nodes[0], 0, paths, gpus="", token="t", secrets={})
        assert {name: found[name] for name in told if name in found} == {
            name: told[name] for name in names
        }


def test_gpus_are_named_in_the_order_in_which_nvml_counts_them(tmp_path: Path) -> None:
    paths = gang_paths(tmp_path)
    given = allocated()
    found = rank_environment(given, given.nodes[0], 0, paths, gpus="2,5", token="t", secrets={})
    assert found["CUDA_VISIBLE_DEVICES"] == "2,5"
    assert found["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"  # CUDA's own puts the fastest first


def test_ranks_on_several_machines_meet_by_the_interface_of_their_nodes_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interfaces = {
        "lo": ["127.0.0.1"],
        "docker0": ["172.17.0.1"],
        "ens1": ["fe80::1%ens1", "10.0.0.5"],
    }
    monkeypatch.setattr(
        "psutil.net_if_addrs",
        lambda: {
            name: [SimpleNamespace(address=address) for address in found]
            for name, found in interfaces.items()
        },
    )
    assert network_variables(["10.0.0.5", "10.0.0.6"], "10.0.0.5") == {
        "NCCL_SOCKET_IFNAME": "=ens1",
        "GLOO_SOCKET_IFNAME": "ens1",
        "TP_SOCKET_IFNAME": "ens1",
    }
    assert network_variables(["192.0.2.7", "10.0.0.6"], "192.0.2.7") == {}
    assert set(network_variables(["127.0.0.1", "127.0.0.2"], "127.0.0.1").values()) == {"lo"}


def test_in_an_image_with_devices_by_cdi_their_variables_hold_unless_the_job_has_them(
    tmp_path: Path,
) -> None:
    image = GangImage("a", ("l",), {"LD_LIBRARY_PATH": "/lib/own", "A": "image"}, (), None)
    said = {"NVIDIA_VISIBLE_DEVICES": "void", "A": "cdi", "B": "cdi"}
    devices = GivenDevices(environment=said, libraries=("/usr/lib/a", "/usr/lib/b"))
    gang = allocated()
    gang = gang.model_copy(update={"spec": gang.spec.model_copy(update={"env": {"B": "job"}})})
    plain, gpu = (
        rank_environment(
            gang, gang.nodes[0], 0, gang_paths(tmp_path), gpus=gpus, token="t", secrets={},
            image=image, devices=devices,
        )
        for gpus in ("", "0")
    )  # fmt: skip
    assert gpu["LD_LIBRARY_PATH"] == "/lib/own:/usr/lib/a:/usr/lib/b"
    assert [gpu[name] for name in (*said, "PATH")] == ["void", "cdi", "job", plain["PATH"]]
    assert (plain["LD_LIBRARY_PATH"], plain["A"]) == ("/lib/own", "image")


def test_in_an_image_its_variables_hold_and_none_of_the_node(tmp_path: Path) -> None:
    env = {"PATH": "/opt/bin", "HOME": "/root", "LD_LIBRARY_PATH": "/lib/own", "A": "image"}
    image = GangImage("a", ("l",), env, (), None)
    gang = allocated()
    spec = gang.spec.model_copy(update={"env": {"B": "job"}})
    gang = gang.model_copy(update={"spec": spec})
    paths = gang_paths(tmp_path)
    plain, gpu = (
        rank_environment(
            gang, gang.nodes[0], 0, paths, gpus=gpus, token="t", secrets={}, image=image
        )
        for gpus in ("", "0,1")
    )
    assert [plain[name] for name in ("PATH", "A", "B")] == ["/opt/bin", "image", "job"]
    assert plain["HOME"] == str(paths.home), "the image's belongs to root"
    assert gpu["PATH"] == "/opt/bin:/usr/local/nvidia/bin"
    assert gpu["LD_LIBRARY_PATH"] == "/lib/own:/usr/local/nvidia/lib64"


def test_in_pods_with_a_network_of_their_own_ranks_meet_at_the_first_pod(tmp_path: Path) -> None:
    gang = allocated()
    parts = tuple(
        gang.nodes[0].model_copy(update={"node_id": f"n{number}", "first_rank": number})
        for number in (1, 0)
    )
    for nodes, address in (
        (parts, f"{pod_host('n0')}.{pod_domain(gang.job_id)}"),
        (parts[1:], "127.0.0.1"),
    ):
        given = gang.model_copy(update={"nodes": nodes})
        found = rank_environment(
            given, given.nodes[0], 0, gang_paths(tmp_path), gpus="", token="t", secrets={},
            in_pod=True, own_network=True,
        )  # fmt: skip
        assert (found["MASTER_ADDR"], found["TORCHELASTIC_USE_AGENT_STORE"]) == (address, "False")
        assert "GLOO_SOCKET_IFNAME" not in found, "a pod has interfaces of its own"
