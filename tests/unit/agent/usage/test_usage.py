"""What gangs and the node use: names and values of metrics, and readings of this machine."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import psutil
import pynvml
import pytest

from gangline_gateway.resources import _MEANS
from gangline_worker.agent.decide.keys import GangKey
from gangline_worker.agent.usage import node
from gangline_worker.agent.usage.gpus import GpuReader, GpuReading
from gangline_worker.agent.usage.node import NodeTotals, node_totals
from gangline_worker.agent.usage.points import Capacity, Reading, gang_points, node_use
from gangline_worker.agent.usage.processes import GangPlace, GangTotals, totals_of
from gangline_worker.agent.usage.watch import UsageWatch

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
KEY = GangKey("sft-1", 1)
HAS = Capacity("n1", 4.0)
BUSY = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; b = bytearray(60 << 20); print(1); \
sys.stdout.flush(); sys.stdin.read()"], stdin=sys.stdin, stdout=subprocess.PIPE,
start_new_session=True)
child.stdout.readline()
sum(range(5_000_000))
print("ready", flush=True)
child.wait()
"""


def reading(at_s: float, gang: GangTotals | None = None, **counters: int) -> Reading:
    fields = (
        dict.fromkeys(("read", "written", "received", "sent", "disk_used", "disk_free"), 0)
        | counters
    )
    return Reading(NodeTotals(at_s=at_s, **fields), {} if gang is None else {KEY: gang})


def points(place: GangPlace, before: Reading | None, now: Reading) -> dict[str, float]:
    found = dict(gang_points(place, before, now, HAS))
    assert all(name.startswith("system/n1/") for name in found)
    return {name.removeprefix("system/n1/"): value for name, value in found.items()}


def test_rates_are_of_the_time_between_two_readings() -> None:
    before = reading(100, GangTotals(10, 0, 5_000_000, 0, 90), received=1_000_000, sent=0)
    now = reading(
        110,
        GangTotals(30, 3_000_000, 25_000_000, 50_000_000, 90),
        received=21_000_000,
        sent=5_000_000,
        disk_used=30,
        disk_free=70,
    )
    assert points(GangPlace(KEY, "a"), before, now) == {
        "cpu_utilization_percentage": 50,  # 20 s of CPU in 10 s, on 4 CPUs
        "system_memory_usage_megabytes": 3,
        "disk_read_megabytes_per_second": 2,
        "disk_write_megabytes_per_second": 5,
        "disk_available_megabytes": 70 / 1e6,
        "disk_usage_percentage": 30,
        "network_receive_megabytes_per_second": 2,
        "network_transmit_megabytes_per_second": 0.5,
    }


def test_the_first_reading_of_a_gang_counts_from_its_start() -> None:
    now = reading(110, GangTotals(8, 0, 0, 0, started_s=105))
    assert points(GangPlace(KEY, "a"), reading(100), now)["cpu_utilization_percentage"] == 40
    assert points(GangPlace(KEY, "a"), None, now)["cpu_utilization_percentage"] == 40


def test_sums_that_fall_as_ranks_end_give_no_negative_rates() -> None:
    found = points(
        GangPlace(KEY, "a"), reading(100, GangTotals(50, 1, 9, 9, 1)), reading(110, GangTotals(2))
    )
    assert min(found.values()) == 0


@pytest.mark.parametrize(("nodes", "each"), [(8, True), (9, False)])
def test_a_wide_gang_has_only_the_means_of_its_gpus(nodes: int, each: bool) -> None:
    gpus = (
        GpuReading(0, 100, None, 10, 40, 700),
        GpuReading(1, 50, None, 20, 40, 300),
        GpuReading(2, 7, 7, 7, 7, 7),  # of another gang
    )
    now = Reading(reading(1).node, {}, gpus)
    found = points(GangPlace(KEY, "a", gpus=(0, 1), nodes=nodes), None, now)
    assert found["gpu_utilization_percentage"] == 75
    assert found["gpu_memory_usage_percentage"] == 37.5
    assert found["gpu_power_usage_watts"] == 500
    assert "gpu_sm_activity_percentage" not in found
    assert ("gpu_1_power_usage_watts" in found) == each
    assert "gpu_2_power_usage_watts" not in found


def test_the_gateway_and_the_guide_know_the_metrics_by_these_names() -> None:
    gpu = GpuReading(0, 100, 50, 10, 40, 700)
    before, now = (
        Reading(found.node, found.gangs, (gpu,))
        for found in (reading(1, GangTotals()), reading(2, GangTotals(), disk_free=1))
    )
    found = points(GangPlace(KEY, "a", gpus=(0,), nodes=9), before, now)
    assert _MEANS.keys() <= found.keys()
    short = {
        "disk_write_megabytes_per_second": "disk_write_...",
        "network_transmit_megabytes_per_second": "network_transmit_...",
    }
    guide = (Path(__file__).parents[4] / "docs/concepts/node-agent.md").read_text("utf-8")
    for name in found:
        assert f"`{short.get(name, name)}`" in guide
    assert f"in a gang of more than 8 nodes {len(found)}." in guide


def test_the_part_of_a_heartbeat() -> None:
    now = Reading(reading(110, read=40_000_000).node, {}, (GpuReading(3, power_w=9.5),))
    found = node_use(reading(100), now, NOW)
    assert (found.read_at, found.disk_read_mb_s, found.disk_used_percent) == (NOW, 4, None)
    assert [(gpu.index, gpu.power_w, gpu.sm_percent) for gpu in found.gpus] == [(3, 9.5, None)]
    assert node_use(None, now, NOW).disk_read_mb_s is None


@pytest.fixture(scope="module")
def busy() -> Iterator[int]:
    """A process with a child that holds 60 MiB and has a session of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", BUSY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        assert process.stdin is not None
        process.stdin.close()


def test_the_processes_of_a_gang_by_proc(busy: int) -> None:
    idle = GangPlace(GangKey("other", 1), "a", ranks=(1,))
    found = totals_of([GangPlace(KEY, "a", ranks=(busy,))])[KEY]
    assert found.memory_bytes > 60 << 20
    assert found.cpu_s > 0
    assert 0 < found.started_s <= node_totals(Path("/")).at_s
    assert totals_of([idle, GangPlace(KEY, "a")])[KEY] == GangTotals()
    assert totals_of([]) == {}


@pytest.mark.parametrize(("hardware", "times"), [(True, 1), (False, 2)])
def test_what_passes_through_a_raid_or_a_bond_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, hardware: bool, times: int
) -> None:
    disk, link = SimpleNamespace(read_bytes=5, write_bytes=7), SimpleNamespace()
    link.bytes_recv, link.bytes_sent = 11, 13
    disks = dict.fromkeys(("nvme0n1", "nvme0n1p1", "md0"), disk)
    links = dict.fromkeys(("lo", "eth0", "bond0"), link)
    for name in ("block/nvme0n1", "block/md0", "class/net/lo", "class/net/eth0", "class/net/bond0"):
        (tmp_path / name).mkdir(parents=True)
    if hardware:
        (tmp_path / "block/nvme0n1/device").mkdir()
        (tmp_path / "class/net/eth0/device").mkdir()
    monkeypatch.setattr(node, "_infiniband", lambda _: 0)
    monkeypatch.setattr(psutil, "disk_io_counters", lambda *, perdisk: disks)
    monkeypatch.setattr(psutil, "net_io_counters", lambda *, pernic: links)
    found = node_totals(tmp_path, tmp_path)
    totals = (found.read, found.written, found.received, found.sent)
    assert totals == tuple(times * each for each in (5, 7, 11, 13))


def test_a_control_group_counts_also_what_has_ended(busy: int, tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("usage_usec 7000000\nuser_usec 1\n")
    (tmp_path / "memory.stat").write_text("anon 100\nfile 50\nshmem 11\n")
    found = totals_of([GangPlace(KEY, "a", ranks=(busy,), group=tmp_path)])[KEY]
    assert (found.cpu_s, found.memory_bytes) == (7, 111)


def test_a_cycle_publishes_gangs_that_have_ranks(busy: int, tmp_path: Path) -> None:
    published = []
    watch = UsageWatch(tmp_path, HAS, (), 30.0)
    places = [GangPlace(KEY, "a", ranks=(busy,)), GangPlace(GangKey("waits", 1), "b")]
    watch.read(places, lambda *given: published.append(given))
    ((job, team, time_ms, values),) = published
    assert (job, team) == ("sft-1", "a")
    assert time_ms > NOW.timestamp() * 1000
    assert dict(values)["system/n1/system_memory_usage_megabytes"] > 60
    assert watch.newest is not None
    assert watch.newest.disk_free_gb


def test_gangs_that_cannot_be_told_end_no_readings(tmp_path: Path) -> None:
    asked: list[int] = []
    again = threading.Event()

    def gangs() -> list[GangPlace]:
        asked.append(1)
        if len(asked) == 1:
            raise RuntimeError
        again.set()
        return []

    watch = UsageWatch(tmp_path, HAS, (), 0.01)
    watch.start(gangs, lambda *_: None)
    assert again.wait(30)
    watch.stop()


def refuse(*_: object) -> None:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that gives its utilization and power alone, unless a test says otherwise."""
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(
        pynvml, "nvmlDeviceGetUtilizationRates", lambda _: SimpleNamespace(gpu=90, memory=3)
    )
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", lambda _: 650_500)
    for name in ("nvmlDeviceGetMemoryInfo", "nvmlGpmQueryDeviceSupport"):
        monkeypatch.setattr(pynvml, name, refuse)


@pytest.mark.usefixtures("driver")
def test_a_value_that_a_gpu_does_not_give_is_none() -> None:
    assert GpuReader([2]).read() == (GpuReading(2, utilization=90.0, power_w=650.5),)


@pytest.mark.usefixtures("driver")
def test_the_activity_of_multiprocessors_is_between_two_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    samples = iter(range(1, 10))
    freed: list[int] = []

    def compare(wanted: object) -> object:
        assert wanted.metrics[0].metricId == pynvml.NVML_GPM_METRIC_SM_UTIL  # type: ignore[attr-defined]
        wanted.metrics[0].value = 42.5  # type: ignore[attr-defined]
        return wanted

    supported = SimpleNamespace(isSupportedDevice=1)
    monkeypatch.setattr(pynvml, "nvmlGpmQueryDeviceSupport", lambda _: supported)
    monkeypatch.setattr(
        pynvml,
        "nvmlGpmSampleAlloc",
        lambda: ctypes.cast(next(samples), pynvml.c_nvmlGpmSample_t),
    )
    monkeypatch.setattr(pynvml, "nvmlGpmSampleGet", lambda _, sample: sample)
    monkeypatch.setattr(pynvml, "nvmlGpmMetricsGet", compare)
    monkeypatch.setattr(
        pynvml,
        "nvmlGpmSampleFree",
        lambda sample: freed.append(ctypes.cast(sample, ctypes.c_void_p).value or 0),
    )
    reader = GpuReader([0])
    assert [reader.read()[0].sm_activity for _ in range(3)] == [None, 42.5, 42.5]
    assert freed == [1, 2], "the newest sample is kept for the next reading"
