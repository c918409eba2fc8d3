"""A node's health: of this machine, from a script, and as NVML would tell it."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from gangline_schemas.events.workers import GpuHealth, NodeHealth
from gangline_worker.agent.gpu_health import GpuWatch
from gangline_worker.agent.health_source import HealthWatch, HostHealth, ScriptedHealth

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)


class Driver:
    """Two GPUs: the first has all there is to tell, the second only a temperature."""

    def __init__(self) -> None:
        self.xids: list[tuple[int, int]] = []
        self.reasons = 0

    def refuse(self, *_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def of_first(self, value: object):
        def told(handle: int, *_: object) -> object:
            return value if handle == 0 else self.refuse()

        return told

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
    made = Driver()
    told = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetIndex": lambda handle: handle,
        "nvmlEventSetCreate": lambda: "events",
        "nvmlDeviceRegisterEvents": lambda *_: None,
        "nvmlEventSetWait_v2": made.wait,
        "nvmlDeviceGetTemperature": lambda handle, _: 60 + handle,
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


def test_a_watch_keeps_the_newest_reading_while_none_can_be_taken():
    readings = iter([NodeHealth(read_at=NOW, disk_write_errors=3), None])
    read = threading.Semaphore(0)

    class Source:
        def read(self, at: datetime) -> NodeHealth | None:
            read.release()
            return next(readings, None)

    watch = HealthWatch(Source, 0.001)
    assert watch.newest is None
    watch.start()
    for _ in range(3):
        assert read.acquire(timeout=30)
    watch.stop()
    assert watch.newest is not None
    assert watch.newest.disk_write_errors == 3
