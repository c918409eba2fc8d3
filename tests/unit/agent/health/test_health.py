"""A node's health: of this machine, from a script, and as NVML would report it."""

from __future__ import annotations

import ctypes
import json
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from gangline_schemas.events.heartbeats import GpuHealth, NodeHealth
from gangline_worker.agent.health.fitness import FitnessLimits, unfit_for
from gangline_worker.agent.health.gpus import GpuWatch
from gangline_worker.agent.health.source import HealthWatch, HostHealth, ScriptedHealth
from gangline_worker.agent.host import inventory
from gangline_worker.agent.host.inventory import DriverUnusable, find_gpus, has_nvidia

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)


class Driver:
    """Two GPUs: the first has all there is to tell, the second only a temperature."""

    def __init__(self) -> None:
        self.xids: list[tuple[int, int]] = []
        self.reasons = 0
        self.lost = False
        self.listened_to: list[int] = []

    def refuse(self, *_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def of_first(self, value: object):
        def told(handle: int, *_: object) -> object:
            return value if handle == 0 else self.refuse()

        return told

    def temperature(self, handle: int, _: int) -> int:
        if self.lost and handle == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return 60 + handle

    def listen(self, handle: int, *_: object) -> None:
        if handle == 0:
            self.refuse()
        self.listened_to.append(handle)

    def slowed(self, handle: int) -> object:
        return self.of_first(self.reasons)(handle)

    def wait(self, events: object, timeout_ms: int) -> SimpleNamespace:
        assert timeout_ms == 0
        if not self.xids:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        index, xid = self.xids.pop(0)
        return SimpleNamespace(device=index, eventData=xid)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    made = Driver()
    told = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlEventSetCreate": lambda: "events",
        "nvmlDeviceRegisterEvents": made.listen,
        "nvmlEventSetWait_v2": made.wait,
        "nvmlDeviceGetTemperature": made.temperature,
        "nvmlDeviceGetTemperatureThreshold": made.of_first(87),
        "nvmlDeviceGetTotalEccErrors": lambda handle, kind, _: made.of_first(7 + kind)(handle),
        "nvmlDeviceGetRemappedRows": made.of_first((0, 1, 1, 0)),
        "nvmlDeviceGetCurrentClocksThrottleReasons": made.slowed,
        "nvmlDeviceGetNvLinkState": lambda handle, link: made.of_first(int(link < 2))(handle),
        "nvmlDeviceGetNvLinkErrorCounter": lambda _, link, kind: 1,
    }
    for name, function in told.items():
        monkeypatch.setattr(pynvml, name, function)
    return made


@pytest.fixture
def two_gpus(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    uuids = ["GPU-aaaa0000-1111", "GPU-bbbb0000-1111"]
    memory = SimpleNamespace(total=80 << 30, used=0)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda index: uuids[index])
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda _: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda _: memory)


def test_a_gpu_tells_what_it_can(driver: Driver):
    driver.reasons = (
        pynvml.nvmlClocksThrottleReasonGpuIdle | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
    )
    first, second = GpuWatch().read()
    assert first == GpuHealth(
        index=0,
        temperature_c=60,
        slowdown_c=87,
        ecc_corrected=7,
        ecc_uncorrected=8,
        reset_needed=True,
        nvlink_errors=8,
        slowed_by=("hw_thermal",),
    )
    assert second == GpuHealth(index=1, temperature_c=61)


def test_xids_are_counted_for_as_long_as_it_watches(driver: Driver):
    watch = GpuWatch()
    driver.xids = [(1, 63), (1, 79)]
    assert [(gpu.xids, gpu.last_xid) for gpu in watch.read()] == [(0, None), (2, 79)]
    driver.xids = [(0, 48)]
    assert [(gpu.xids, gpu.last_xid) for gpu in watch.read()] == [(1, 48), (2, 79)]


def test_the_gpu_of_an_xid_is_known_by_the_address_of_its_handle(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
):
    """With NVML's own types: each answer has a handle object of its own for the same GPU."""
    places = [ctypes.create_string_buffer(8) for _ in range(2)]

    def handle(index: int) -> object:
        return ctypes.cast(places[index], pynvml.c_nvmlDevice_t)

    told = [pynvml.c_nvmlEventData_t(device=handle(1), eventData=48)]

    def wait(*_: object) -> object:
        return told.pop() if told else driver.wait("events", 0)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", handle)
    for name in ("nvmlDeviceGetTemperature", "nvmlDeviceRegisterEvents"):
        monkeypatch.setattr(pynvml, name, driver.refuse)
    monkeypatch.setattr(pynvml, "nvmlEventSetWait_v2", wait)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetNvLinkErrorCounter", driver.refuse)
    assert [(gpu.xids, gpu.last_xid) for gpu in GpuWatch().read()] == [(0, None), (1, 48)]


def test_an_xid_is_not_hidden_by_those_that_follow_from_it(driver: Driver):
    watch = GpuWatch()
    driver.xids = [(0, 48), (0, 45), (0, 45), (1, 43)]
    assert [(gpu.xids, gpu.last_xid) for gpu in watch.read()] == [(3, 48), (1, 43)]
    driver.xids = [(0, 31)]
    assert [(gpu.xids, gpu.last_xid) for gpu in watch.read()] == [(4, 31), (1, 43)]
    driver.xids = [(0, 119), (0, 154), (0, 31), (0, 13)]
    assert watch.read()[0].last_xid == 119


def test_a_gpu_that_is_lost_is_told_of_once_as_off_the_bus(driver: Driver):
    watch = GpuWatch()
    assert driver.listened_to == [1], "one that refuses silenced the next"
    driver.lost = True
    for _ in range(2):
        assert [(gpu.xids, gpu.last_xid) for gpu in watch.read()] == [(0, None), (1, 79)]
    driver.xids = [(1, 154)]
    assert watch.read()[1].last_xid == 79


def test_a_lost_gpu_hides_no_other_and_keeps_its_node_away(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
):
    def handle(index: int) -> int:
        return index if index == 1 else pynvml._nvmlCheckReturn(pynvml.NVML_ERROR_GPU_IS_LOST)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", handle)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda _: "NVIDIA H100 80GB HBM3")
    memory = SimpleNamespace(total=80 << 30, used=0)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda _: memory)
    reading = GpuWatch().read()
    assert [(gpu.index, gpu.temperature_c, gpu.last_xid) for gpu in reading] == [
        (0, None, 79),
        (1, 61, None),
    ]
    assert [(gpu.index, gpu.model, gpu.memory_gb) for gpu in find_gpus()] == [(1, "h100-80gb", 80)]
    unfit = unfit_for(NodeHealth(read_at=NOW, gpus=reading), FitnessLimits())
    assert unfit == ("GPU 0 has fallen off the bus",)


def test_newer_gpus_tell_how_far_they_are_from_slowing_down(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTemperatureThreshold", driver.refuse)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMarginTemperature", driver.of_first(27))
    assert [gpu.slowdown_c for gpu in GpuWatch().read()] == [87, None]


@pytest.mark.parametrize(
    ("code", "offered"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, True),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, True),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, False),
        (pynvml.NVML_ERROR_UNKNOWN, False),
    ],
)
def test_a_node_whose_driver_does_not_work_is_none_of_cpus(
    monkeypatch: pytest.MonkeyPatch, code: int, offered: bool
):
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: pynvml._nvmlCheckReturn(code))
    monkeypatch.setattr(inventory, "has_nvidia", lambda _: False)
    if offered:
        assert find_gpus() == ()
    else:
        with pytest.raises(DriverUnusable, match="GPUs cannot be used"):
            find_gpus()


def test_an_agent_that_starts_before_the_driver_of_its_gpus_offers_no_cpus(
    monkeypatch: pytest.MonkeyPatch,
):
    code = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: pynvml._nvmlCheckReturn(code))
    monkeypatch.setattr(inventory, "has_nvidia", lambda kind: kind == "0x0302")
    with pytest.raises(DriverUnusable, match="GPUs cannot be used"):
        find_gpus()


def test_a_gpu_without_a_driver_is_found_by_its_class(tmp_path: Path):
    device = tmp_path / "0000:01:00.0"
    device.mkdir()
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    assert has_nvidia(devices=tmp_path)
    assert has_nvidia("0x0302", tmp_path)
    (device / "class").write_text("0x030000\n")  # it drives a display
    assert not has_nvidia("0x0302", tmp_path)
    (device / "class").write_text("0x020000\n")  # a network card of NVIDIA
    assert not has_nvidia(devices=tmp_path)


@pytest.mark.parametrize(
    ("products", "offered"),
    [
        ([("NVIDIA GeForce GT 710", 2), ("NVIDIA A100-SXM4-40GB", 40)], [(1, "a100-40gb")]),
        ([("Quadro P400", 2), ("NVIDIA T1000 8GB", 8)], []),
    ],
    ids=["beside a GPU", "display cards alone: a node of CPUs"],
)
def test_a_display_card_is_never_offered(
    driver: Driver,
    monkeypatch: pytest.MonkeyPatch,
    products: list[tuple[str, int]],
    offered: list[tuple[int, str]],
):
    def memory(index: int) -> SimpleNamespace:
        return SimpleNamespace(total=products[index][1] << 30, used=0)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda index: products[index][0])
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", memory)
    assert [(gpu.index, gpu.model) for gpu in find_gpus()] == offered


@pytest.mark.parametrize(
    ("said", "offered"),
    [
        ("1", [1]),
        ("1, 0", [0, 1]),
        ("0,1,2", [0, 1]),
        ("0,-1,1", [0]),
        ("GPU-bbbb0000", [1]),
        ("gpu-BBBB", [1]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
    ],
)
def test_only_visible_gpus_are_offered_and_watched(
    two_gpus: None, monkeypatch: pytest.MonkeyPatch, said: str, offered: list[int]
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", said)
    assert [gpu.index for gpu in find_gpus()] == offered
    assert [gpu.index for gpu in GpuWatch().read()] == offered


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("2", "'2', which names none of 2 GPUs"),
        ("GPU-", "names none of 2 GPUs"),  # of both: which one is meant?
        ("cuda:0", "names none of 2 GPUs"),
        ("MIG-aaaa0000-1", "only whole GPUs are offered"),
    ],
)
def test_a_node_whose_visible_gpus_are_not_there_is_none_of_cpus(
    two_gpus: None, monkeypatch: pytest.MonkeyPatch, said: str, why: str
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", said)
    with pytest.raises(DriverUnusable, match=why):
        find_gpus()
    assert GpuWatch().read() == ()


def test_nor_is_one_of_whose_gpus_none_answers(driver: Driver, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", driver.refuse)
    with pytest.raises(DriverUnusable, match="none of 2 GPUs answers"):
        find_gpus()


def test_a_machine_without_a_driver_has_no_gpus(driver: Driver, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pynvml, "nvmlInit", driver.refuse)
    assert GpuWatch().read() == ()


def test_this_machine_has_a_disk_memory_and_a_clock(tmp_path: Path):
    found = HostHealth(tmp_path, GpuWatch()).read(NOW)
    assert found is not None
    assert found.read_at == NOW
    assert found.disk_free_gb is not None
    assert found.disk_write_s is not None
    assert found.memory_available_gb is not None
    assert found.clock_synced is (found.clock_error_s is not None)
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [4096]


def test_a_disk_that_takes_nothing_is_counted(tmp_path: Path):
    (tmp_path / "health.probe").mkdir()
    source = HostHealth(tmp_path, GpuWatch())
    source.read(NOW)
    found = source.read(NOW)
    assert found is not None
    assert (found.disk_write_s, found.disk_write_errors) == (None, 2)


def test_a_script_says_what_a_test_wants(tmp_path: Path):
    script = tmp_path / "health.json"
    source = ScriptedHealth(script)
    assert source.read(NOW) is None
    script.write_text(json.dumps({"gpus": [{"index": 0, "ecc_uncorrected": 4}]}))
    assert source.read(NOW) == NodeHealth(
        read_at=NOW, gpus=(GpuHealth(index=0, ecc_uncorrected=4),)
    )
    for broken in ("{", "[]", '{"gpus": 1}', '{"unknown": 1}'):
        script.write_text(broken)
        assert source.read(NOW) is None


def keeps_its_reading(watch: HealthWatch, read: threading.Semaphore) -> None:
    """After three readings it has the one that worked."""
    watch.start()
    for _ in range(3):
        assert read.acquire(timeout=30)
    watch.stop()
    assert watch.newest is not None
    assert watch.newest.disk_write_errors == 3


def test_a_watch_keeps_the_newest_reading_while_none_can_be_taken():
    readings = iter([NodeHealth(read_at=NOW, disk_write_errors=3), None])
    read = threading.Semaphore(0)

    class Source:
        def read(self, at: datetime) -> NodeHealth | None:
            read.release()
            return next(readings, None)

    watch = HealthWatch(Source, 0.001, gpus=(0,))
    assert watch.newest is None
    keeps_its_reading(watch, read)
    assert [gpu.index for gpu in watch.statuses] == [0]


def test_a_reading_that_fails_does_not_end_the_watch():
    read = threading.Semaphore(0)

    class Source:
        def __init__(self) -> None:
            self.failed = False

        def read(self, at: datetime) -> NodeHealth | None:
            read.release()
            if not self.failed:
                self.failed = True
                raise ValueError("a driver answers with what nobody expects")
            return NodeHealth(read_at=NOW, disk_write_errors=3)

    keeps_its_reading(HealthWatch(Source, 0.001), read)
