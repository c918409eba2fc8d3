"""What `save` takes and gives back, what ranks hold alike, and what is a rank's own."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gangline_schemas.checkpoint import ITEM_BYTES, RankManifest
from gangline_schemas.rank_protocol import Doing, ShardReady
from gangline_worker import doing, flush, prepare, reporting, restore, save
from gangline_worker.agent_line import Reporter
from gangline_worker.checkpoint import public
from gangline_worker.checkpoint.alike import digest, weighted_sum
from gangline_worker.checkpoint.commit import commit_local, committed
from gangline_worker.checkpoint.loader import WrongCheckpoint
from gangline_worker.checkpoint.tree import flatten, rebuild
from support.fakes.agent_end import AgentEnd
from support.waiting import until

NUMPY = [name for name in ITEM_BYTES if not name.startswith(("bfloat", "float8"))]
Ranks = Callable[[int, int], None]


@pytest.fixture
def be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    """Be this rank of so many, in one attempt."""
    monkeypatch.setenv("GANGLINE_CHECKPOINT_DIR", str(tmp_path))
    monkeypatch.setenv("GANGLINE_ATTEMPT", "1")

    def change(rank: int, world_size: int) -> None:
        monkeypatch.setattr(public, "_savers", {})
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world_size))
        if found := committed(tmp_path):
            monkeypatch.setenv("GANGLINE_RESUME_FROM", str(found[-1]))

    return change


def finish(directory: Path) -> list[str]:
    """Wait for this rank's saves; their errors."""
    saver = public._savers[directory]
    saver.wait()
    return [result.error for result in saver.results() if result.error]


def alike(one: Any, other: Any) -> bool:
    """Equal, of one type, all the way down; tensors and arrays bit for bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and digest(one) == digest(other)
    if isinstance(one, np.ndarray | np.generic):
        same = (one.dtype, one.shape) == (other.dtype, other.shape)
        return same and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other) or repr(one) == repr(other) == "nan"


NUMBERS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(max_size=20)
)
SCALARS = st.builds(
    lambda name, raw: np.frombuffer(raw * 16, dtype=name)[0],
    st.sampled_from([name for name in NUMPY if name != "bool"]),
    st.binary(min_size=1, max_size=1),
)
KEYS = st.recursive(
    NUMBERS.filter(lambda key: repr(key) != "nan"),
    lambda inner: st.tuples(inner, inner),
    max_leaves=3,
)
ARRAYS = st.builds(
    lambda name, shape: np.arange(int(np.prod(shape))).astype(name).reshape(shape),
    st.sampled_from(NUMPY),
    st.sampled_from([(), (0,), (3,), (2, 0), (2, 3)]),
)
TENSORS = st.builds(
    lambda name, shape: torch.ones(shape).to(getattr(torch, name)),
    st.sampled_from(sorted(ITEM_BYTES)),
    st.sampled_from([(), (0,), (3,), (2, 0), (2, 3)]),
)
STATES = st.recursive(
    st.one_of(NUMBERS, SCALARS, ARRAYS, TENSORS, st.sets(KEYS), st.frozensets(KEYS)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(), inner, max_size=3),
        st.dictionaries(KEYS, inner, max_size=3),
    ),
    max_leaves=12,
)


def has_names_twice(state: Any) -> bool:
    """Keys such as 1 and "1" give two tensors one name, which is refused."""
    try:
        flatten(state)
    except TypeError as error:
        return "have this name" in str(error)
    return False


def read_again(state: Any) -> Any:
    """What comes out of a manifest with this state and its tensors."""
    tensors, skeleton = flatten(state)
    manifest = RankManifest(
        job_id="j", attempt=1, step=1, rank=0, world_size=1,
        shard={"key": "k", "size_bytes": 0, "xxh3": "0" * 32}, tensors=(),
        state={"skeleton": skeleton},
    )  # fmt: skip
    return rebuild(RankManifest.decode(manifest.encode()).state["skeleton"], tensors)


def test_the_deepest_state_that_is_taken_is_read_again() -> None:
    state: Any = torch.empty(0, 2)
    for _ in range(28):
        state = [state]
    assert alike(read_again(state), state)
    with pytest.raises(TypeError, match="nested deeper"):
        flatten([state])


@given(state=STATES)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_state_comes_back_equal_and_of_its_types(state: Any) -> None:
    if has_names_twice(state):
        return
    assert alike(read_again(state), state)


def test_a_state_of_all_kinds_goes_through_files(tmp_path: Path, be: Ranks) -> None:
    be(0, 1)
    state = {
        "arrays": {name: np.arange(6).astype(name).reshape(2, 3) for name in NUMPY},
        "reversed": np.arange(5)[::-1],
        "best": np.float64(0.25),
        "tokens": torch.arange(4).to(torch.uint16),
        "raw": b"\x00\xff",
        "nothing": b"",
        "seen": {1, "a", (2, b"b")},
        ("a", 1): frozenset({2.5}),
        "random": np.random.default_rng(3).bit_generator.state,
    }
    save(state, 1)
    assert finish(tmp_path) == []
    be(0, 1)
    found = restore()
    assert found is not None
    assert alike(found.state, state)
    assert found.state["arrays"]["float32"].flags.writeable
    into = restore(into={"tokens": torch.zeros(4, dtype=torch.uint16), "raw": b"longer"})
    assert into is not None
    assert alike(into.state, state)


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


DEEP: list[Any] = []
DEEP.append(DEEP)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"x": object()}, r"x: cannot save a object; use tensors"),
        ({"x": Colour.RED}, r"x: cannot save <Colour.RED: 1>; save its value"),
        ({"x": Level.LOW}, r"x: cannot save <Level.LOW: 1>; save its value"),
        ({Level.LOW: 1}, r"cannot save <Level.LOW: 1>; save its value"),
        ({"x": np.array(["a"])}, r"x: cannot save numpy's <U1; make it one of float64"),
        ({"x": np.arange(2, dtype=">i4")}, r"x: cannot save numpy's >i4"),
        ({"x": np.datetime64("2026-01-01")}, r"x: cannot save numpy's <M8\[D\]"),
        ({"x": [bytearray(b"a")]}, r"x\.0: cannot save a bytearray"),
        ({"x": {torch.ones(1)}}, r"x: cannot save a Tensor"),
        ({"x": DEEP}, r"nested deeper than 28 levels"),
        ({1: torch.ones(1), "1": torch.ones(1)}, r"1: two tensors of the state have this name"),
        ({"x": torch.ones(2, dtype=torch.complex32)}, r"x: cannot save dtype complex32"),
        ({"x": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])}, r"x: .*\(nested\)"),
        ({"\ud800": torch.ones(1)}, "must be Unicode text"),
    ],
)
@pytest.mark.parametrize("on_the_platform", [False, True])
def test_what_cannot_be_saved_is_said_before_the_first_step(
    be: Ranks,
    monkeypatch: pytest.MonkeyPatch,
    value: dict[Any, Any],
    says: str,
    *,
    on_the_platform: bool,
) -> None:
    be(0, 1)
    if not on_the_platform:
        monkeypatch.delenv("GANGLINE_CHECKPOINT_DIR")
    with pytest.raises(TypeError, match=says):
        prepare(value)
    with pytest.raises(TypeError, match=says):
        restore(into=value)


def test_the_first_save_after_prepare_allocates_nothing(
    tmp_path: Path, be: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    be(0, 1)
    prepare({"w": torch.zeros(100)}, per_rank={"own": torch.zeros(10)})
    monkeypatch.setattr("gangline_worker.checkpoint.plan.staging", None)
    assert save({"w": torch.ones(100)}, 1, per_rank={"own": torch.ones(10)})
    assert finish(tmp_path) == []


@pytest.mark.parametrize("trains", [True, False])
def test_a_save_tells_that_it_saves_unless_the_program_tells_nothing(
    tmp_path: Path, be: Ranks, monkeypatch: pytest.MonkeyPatch, *, trains: bool
) -> None:
    agent = AgentEnd(tmp_path)
    monkeypatch.setattr(reporting, "_reporter", Reporter(agent.path))
    be(0, 1)
    if trains:
        doing("training")
    prepare({"w": torch.ones(3)})
    save({"w": torch.ones(3)}, 1)
    assert finish(tmp_path) == []
    assert flush()
    said = agent.wait_for(lambda said: any(isinstance(one, ShardReady) for one in said))
    agent.hang_up()
    told = [one.activity.value for one in said if isinstance(one, Doing)]
    around = ["checkpointing", "training"]
    assert told == (["training", *around, *around] if trains else [])


PARTS = 40_000  # more bytes than each rank writes whole


@pytest.mark.parametrize("size", [1, 10, PARTS])
def test_plain_tensors_that_differ_between_ranks_are_not_committed(
    tmp_path: Path, be: Ranks, size: int
) -> None:
    for rank in range(3):
        be(rank, 3)
        mine = torch.full((size,), float(rank == 2))
        save({"same": torch.ones(PARTS), "fp32_partition": mine}, 1)
        errors = finish(tmp_path)
    assert committed(tmp_path) == []
    assert len(errors) == 1
    assert (
        "tensor fp32_partition: the ranks hold different values, 2 not those of rank 0"
        in (errors[0])
    )
    assert "per_rank" in errors[0]


@pytest.mark.parametrize("rows", [PARTS, 1])
def test_a_large_tensor_that_only_some_ranks_hold_is_not_committed(
    tmp_path: Path, be: Ranks, rows: int
) -> None:
    """Such as the layers of a stage: each rank writes a part, as if all of them held it."""
    for rank in range(3):
        be(rank, 3)
        layer = {"layer": torch.ones(rows, PARTS // rows)} if rank else {}
        save({"same": torch.ones(PARTS), "small": torch.ones(3), **layer}, 1)
        errors = finish(tmp_path)
    assert committed(tmp_path) == []
    assert "tensor layer: of 3 ranks only 1, 2 hold it" in errors[0]
    assert "per_rank" in errors[0]


def test_a_small_tensor_may_be_of_one_rank(tmp_path: Path, be: Ranks) -> None:
    for rank in range(2):
        be(rank, 2)
        save({"same": torch.ones(PARTS)} | ({} if rank else {"seen": torch.ones(3)}), 1)
        assert finish(tmp_path) == []
    be(0, 2)
    found = restore()
    assert found is not None
    assert torch.equal(found.state["seen"], torch.ones(3))


def test_what_is_a_ranks_own_comes_back_to_it(tmp_path: Path, be: Ranks) -> None:
    for rank in range(3):
        be(rank, 3)
        own = {"part": torch.full((PARTS,), float(rank)), "random": b"%d" % rank}
        save({"same": torch.ones(PARTS)}, 1, per_rank=own)
        assert finish(tmp_path) == []
    assert len(committed(tmp_path)) == 1
    for rank in range(3):
        be(rank, 3)
        found = restore()
        assert found is not None
        assert found.per_rank["random"] == b"%d" % rank
        assert torch.equal(found.per_rank["part"], torch.full((PARTS,), float(rank)))
        assert torch.equal(found.state["same"], torch.ones(PARTS))


def test_a_ranks_own_state_belongs_to_one_number_of_ranks(tmp_path: Path, be: Ranks) -> None:
    for rank in range(2):
        be(rank, 2)
        save({"same": torch.ones(PARTS)}, 1, per_rank={"part": torch.ones(2)})
        assert finish(tmp_path) == []
    be(0, 1)
    with pytest.raises(WrongCheckpoint, match=r"saved by 2 ranks.*restore\(per_rank=False\)"):
        restore()
    found = restore(per_rank=False)
    assert found is not None
    assert found.per_rank is None
    assert torch.equal(found.state["same"], torch.ones(PARTS))


def test_a_save_without_a_ranks_own_state_restores_anywhere(tmp_path: Path, be: Ranks) -> None:
    for rank in range(2):
        be(rank, 2)
        save({"same": torch.ones(PARTS)}, 1)
        assert finish(tmp_path) == []
    be(0, 1)
    assert restore() is not None


@given(st.data())
@settings(deadline=None)
def test_a_changed_bit_anywhere_changes_both_digests(data: st.DataObject) -> None:
    count = data.draw(st.sampled_from([1, 3, 4, 5, 4096, 4099]))
    raw = torch.randint(0, 256, (count,), dtype=torch.uint8)
    other = raw.clone()
    other[data.draw(st.integers(0, count - 1))] ^= 1 << data.draw(st.integers(0, 7))
    for of in (digest, lambda one: weighted_sum(one).item()):
        assert of(raw) == of(raw.clone())
        assert of(raw) != of(other)


def test_a_digest_is_of_the_values_wherever_and_however_they_lie() -> None:
    whole = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    moved = torch.cat([torch.zeros(1), whole.flatten()])[1:].reshape(3, 4)
    for of in (digest, lambda one: weighted_sum(one).item()):
        assert of(whole) == of(whole.T.contiguous().T) == of(moved)
        assert of(whole) != of(whole.T)
        assert of(torch.ones(40_000)) != of(torch.full((40_000,), 2.0))
    bytes_off = torch.arange(10, dtype=torch.uint8)
    assert weighted_sum(bytes_off[1:]).item() == weighted_sum(bytes_off[1:].clone()).item()


def test_two_threads_may_save(tmp_path: Path, be: Ranks) -> None:
    be(0, 1)
    second = threading.Thread(target=save, args=({"w": torch.full((3,), 2.0)}, 2))

    class Slow(torch.Tensor):
        """While it is laid out, the other thread tries to save."""

        def data_ptr(self) -> int:
            if second.ident is None:
                second.start()
                second.join(1.0)  # it waits for this save
            return super().data_ptr()

    assert save({"w": torch.ones(3).as_subclass(Slow)}, 1)
    second.join()
    assert finish(tmp_path) == []
    assert [folder.name[-1] for folder in committed(tmp_path)] == ["1", "2"]


def test_without_its_agent_a_rank_commits_and_deletes_nothing(
    tmp_path: Path, be: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = AgentEnd(tmp_path)
    monkeypatch.setenv("GANGLINE_AGENT_SOCKET", end.path)
    line = Reporter(end.path)
    monkeypatch.setattr(reporting, "_reporter", line)
    be(0, 1)
    save({"w": torch.ones(3)}, 1)
    assert finish(tmp_path) == []
    end.wait_for(lambda said: any(isinstance(message, ShardReady) for message in said))
    end.hang_up()
    until(lambda: not line.connected)
    for step in (2, 3, 4):
        save({"w": torch.ones(3)}, step)
        assert "the agent that uploads it is gone" in finish(tmp_path)[0]
    assert committed(tmp_path) == []
    assert (tmp_path / "attempt-0001" / "step-0000000001" / "rank-00000.bin").exists()


@pytest.mark.parametrize(
    ("here", "says"),
    [
        ({"seen": torch.empty(0, 2)}, r"seen is empty here and float32 \(3, 2\) in the checkpoint"),
        ({"none": torch.empty(0, 7)}, r"none is empty here and \['float32', \[0, 2\]\] in the"),
        ({"other": torch.empty(0)}, "other is empty here and not in the checkpoint"),
    ],
)
def test_an_empty_tensor_takes_no_saved_ones_place(
    be: Ranks, tmp_path: Path, here: dict[str, torch.Tensor], says: str
) -> None:
    be(0, 1)
    save({"seen": torch.ones(3, 2), "none": torch.empty(0, 2)}, 1)
    assert finish(tmp_path) == []
    be(0, 1)
    with pytest.raises(WrongCheckpoint, match=says):
        restore(here)
    found = restore({"none": torch.empty(0, 2)})
    assert found is not None
    assert torch.equal(found.state["seen"], torch.ones(3, 2))


def test_a_state_has_no_names_of_a_ranks_own(be: Ranks) -> None:
    """One of two tensors would take the place of the other."""
    be(0, 1)
    mine = {"$per_rank": {"0": {"x": torch.ones(2)}}}
    for take in (lambda: save(mine, 1), lambda: prepare(mine), lambda: restore(mine)):
        with pytest.raises(TypeError, match=r"\$per_rank\.0\.x: .* take another key"):
            take()


def test_a_conjugate_view_is_filled_by_its_numbers(be: Ranks, tmp_path: Path) -> None:
    be(0, 1)
    values = torch.tensor([1 + 2j, 3j])
    save({"one": values.conj(), "other": values}, 1)
    assert finish(tmp_path) == []
    be(0, 1)
    into = {"one": torch.zeros(2, dtype=torch.complex64).conj(), "other": torch._neg_view(values)}
    assert restore(into) is not None
    assert into["one"].tolist() == [1 - 2j, -3j]
    assert into["other"].tolist() == [1 + 2j, 3j]


def test_a_metric_that_is_too_large_for_a_float_is_named(be: Ranks) -> None:
    be(0, 1)
    with pytest.raises(TypeError, match=r"metrics\.tokens: cannot save 10000"):
        save({"w": torch.ones(3)}, 1, {"tokens": 10**400})


def test_an_incomplete_checkpoint_is_not_committed(tmp_path: Path) -> None:
    assert not commit_local(tmp_path, 1)
