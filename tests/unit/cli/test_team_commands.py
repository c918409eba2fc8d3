"""`gangline teams`, `data` and `nodes`: what admins change, and how it is shown."""

from __future__ import annotations

from support.fakes.stub_gateway import NODE, NOW, TEAM, Stub
from support.fixtures.commands import all_routes
from support.harnesses.cli_run import Runner


def test_a_new_team_needs_a_limit(gangline: Runner, stub: Stub) -> None:
    assert gangline("teams", "set", "new", "--guarantee", "1").code == 2
    stub.on("PUT", "/v1/teams/nlp", TEAM | {"gpu_limit": 16})
    assert gangline("teams", "set", "nlp", "--limit", "16").code == 0
    (body,) = stub.bodies("PUT", "/v1/teams/nlp")
    assert body == {
        "gpu_limit": 16,
        "gpu_guarantee": 4,
        "borrow_limit": 0,
        "parent": None,
        "weight": 1.0,
        "surplus": None,
        "gpu_types": [],
        "gpu_hours_per_month": None,
        "cpu_limit": None,
        "cpu_hours_per_month": None,
        "job_limit": 10_000,
    }, "others stay"


def test_the_fields_of_the_tree_are_set_and_cleared(gangline: Runner, stub: Stub) -> None:
    limits = {
        "weight": 2.0,
        "surplus": "reclaim_by_weight",
        "gpu_hours_per_month": 500.0,
        "cpu_limit": 64.5,
        "cpu_hours_per_month": 900.0,
        "job_limit": 50,
    }
    types = [{"gpu_type": "h100", "gpu_limit": 32}, {"gpu_type": "a100", "gpu_limit": None}]
    tree = {"parent": "lab", "gpu_types": types} | limits
    stub.on("PUT", "/v1/teams/nlp", TEAM | tree)
    options = ("--parent", "lab", "--weight", "2", "--gpu-types", "h100=32,a100")
    options += ("--surplus", "reclaim_by_weight", "--cpu-limit", "64.5", "--cpu-hours", "900")
    assert (
        gangline("teams", "set", "nlp", *options, "--gpu-hours", "500", "--job-limit", "50").code
        == 0
    )
    stub.on("GET", "/v1/teams", {"teams": [TEAM | tree]})
    cleared = ("--parent", "-", "--gpu-types", "-", "--gpu-hours", "0", "--cpu-limit", "-")
    assert gangline("teams", "set", "nlp", *cleared).code == 0
    first, second = stub.bodies("PUT", "/v1/teams/nlp")
    assert {key: first[key] for key in tree} == tree
    nothing = {"parent": None, "gpu_types": [], "gpu_hours_per_month": None, "weight": 2.0}
    nothing |= {"job_limit": 50, "surplus": "reclaim_by_weight"}
    nothing |= {"cpu_limit": None, "cpu_hours_per_month": 900.0}
    assert {key: second[key] for key in tree} == nothing
    bad = gangline("teams", "set", "nlp", "--gpu-types", "h100=many")
    assert (bad.code, "'h100=many' is no GPU model" in bad.err) == (2, True)
    bad = gangline("teams", "set", "nlp", "--cpu-limit", "many")
    assert (bad.code, "'many' is no number of CPUs" in bad.err) == (2, True)


def test_data_is_approved_withdrawn_and_listed(gangline: Runner, stub: Stub) -> None:
    path, name = "/v1/data-approvals", "corpus@xxh3-0f343b0931126a20f133d67c2b018a3b"
    use = {"snapshot": name, "project": "assistants", "purpose": "model-training"}
    options = ("data", "approve", name, "--project", "assistants", "--purpose", "model-training")
    stub.on("POST", path, use | {"approved": True})
    assert "is approved for assistants" in gangline(*options).out
    stub.on("POST", path, use | {"approved": False})
    assert "is not approved for assistants" in gangline(*options, "--withdraw").out
    assert stub.bodies("POST", path) == [use | {"approve": True}, use | {"approve": False}]
    stub.on("GET", path, {"approvals": [use | {"user": "ada", "approved_at": NOW}]})
    shown = gangline("data", "approvals").out
    assert [word in shown for word in ("corpus@", "assistants", "ada")] == [True, True, True]
    stub.on("GET", path, {"approvals": []})
    assert "nothing is approved" in gangline("data", "approvals", name).err


def test_data_is_approved_by_its_whole_name(gangline: Runner, stub: Stub) -> None:
    done = gangline("data", "approve", "corpus", "--project", "assistants", "--purpose", "training")
    assert (done.code, stub.asked) == (2, [])
    assert "gangline data show" in done.err


def test_a_purpose_is_read_whole(gangline: Runner, stub: Stub) -> None:
    use = {"snapshot": f"c2@xxh3-{'0' * 32}", "project": "assistants", "purpose": "model-training"}
    approval = use | {"user": "local-admin", "approved_at": NOW}
    stub.on("GET", "/v1/data-approvals", {"approvals": [approval]})
    shown = gangline("data", "approvals").out
    assert "assistants  model-training  local-ad" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_teams_are_shown_as_a_tree_within_80_columns(gangline: Runner, stub: Stub) -> None:
    lab = TEAM | {
        "team": "lab", "gpu_limit": 1024, "gpu_guarantee": 512, "gpus_used": 1000,
        "gpu_hours_this_month": 123_456.7, "gpu_hours_per_month": 500_000.0,
    }  # fmt: skip
    nlp = TEAM | {"parent": "lab", "borrow_limit": 16, "gpus_borrowed": 2}
    hidden = TEAM | {"team": "x" * 63, "parent": "not-mine", "gpu_hours_this_month": 0.25}
    stub.on("GET", "/v1/teams", {"teams": [lab, nlp, hidden]})
    lines = gangline("teams").out.splitlines()
    assert max(len(line) for line in lines) <= 80
    assert lines[1].startswith("lab  ")
    assert lines[1].endswith("123,456.7 of 500,000")
    assert lines[2].startswith("  nlp  ")
    assert " 2 of 16 " in lines[2]
    assert lines[3].startswith("xxx")
    assert lines[3].endswith(" 0.2")


def test_nodes_say_why_they_take_nothing(gangline: Runner, stub: Stub) -> None:
    unfit = NODE | {"status": "unfit", "why": "its disk has 0.20 GB left, and 1.00 are wanted"}
    stub.on("GET", "/v1/nodes", {"nodes": [NODE, unfit | {"node_id": "node-1"}]})
    shown = gangline("nodes")
    assert shown.err == "node-1 is unfit: its disk has 0.20 GB left, and 1.00 are wanted\n"


def test_nodes_say_which_agent_to_upgrade(gangline: Runner, stub: Stub) -> None:
    why = "its agent is 0.1.0, the oldest accepted is 0.3.0; upgrade the agent"
    stub.on("GET", "/v1/nodes", {"nodes": [NODE | {"status": "outdated", "why": why}]})
    shown = gangline("nodes")
    assert "outdated" in shown.out
    assert shown.err == f"node-0 is outdated: {why}\n"


def test_nodes_say_who_is_slow_there(gangline: Runner, stub: Stub) -> None:
    stub.on("GET", "/v1/nodes", {"nodes": [NODE | {"straggler": "rank 1 on node-0 works 0.8 s"}]})
    assert gangline("nodes").err == "slow: rank 1 on node-0 works 0.8 s\n"


def test_drain_and_its_undoing(gangline: Runner, stub: Stub) -> None:
    all_routes(stub)
    gangline("drain", "node-0")
    gangline("drain", "node-0", "--undo")
    gangline("drain", "node-0", "--cordon")
    assert stub.bodies("POST", "/v1/nodes/node-0/drain") == [
        {"drain": True},
        {"drain": False},
        {"drain": True, "move_jobs": False},
    ]
