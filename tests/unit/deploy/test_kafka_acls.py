"""deploy/kafka/acls.toml against the catalog and what each service does, and its table."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline.kafka.rights import read_rights, table
from gangline_schemas.catalog import Topic, catalog
from gangline_tracker.ingest import GROUPS
from gangline_tracker.live import CLIENT
from support.deciders import DECIDERS

PAGE = Path(__file__).parents[3] / "deploy" / "kafka" / "README.md"
SELF = {Topic.PARTS.value, Topic.VITALS.value}
"""Where a service reports itself."""
ASKED = {Topic.REQUESTS.value, Topic.AUTOMATION.value}
"""Where submitters ask of jobs, studies, pipelines and models."""
OWN = {Topic.AUDIT.value, Topic.TOKENS.value}
"""What the gateway alone writes."""
SETS_UP_TEAMS = {"quota": {Topic.ADMIN.value}}
"""quota publishes its file of teams as a request."""


def dead_letters(topics: tuple[Topic, ...]) -> set[str]:
    return {topic.dlq for topic in topics if not catalog()[topic].compacted}


@pytest.mark.parametrize("name", DECIDERS)
def test_a_decider_reads_its_inputs_and_writes_its_log(name: str) -> None:
    decider = DECIDERS[name].make()
    rights = read_rights()[decider.name]
    heard = (*decider.inputs, *decider.signals)
    assert rights.read == {topic.value for topic in (*heard, decider.log)}
    own = {decider.log.value} | SELF | SETS_UP_TEAMS.get(decider.name, set())
    assert rights.write == own | dead_letters(heard)
    assert rights.transactional_id == f"gangline.{decider.name}."
    assert rights.groups == (f"gangline.{decider.name}",)


def test_the_tracker_and_the_gateway_read_nearly_everything() -> None:
    tracker, gateway = read_rights()["tracker"], read_rights()["gateway"]
    topics = tuple(topic for group in GROUPS for topic in group.topics)
    assert (
        tracker.read
        == {topic.value for topic in topics}
        == ({*Topic} - {Topic.PROGRESS, Topic.VITALS, Topic.TOKENS})
    )
    assert gateway.read == ({*Topic} - {Topic.METRICS}) | dead_letters((*Topic,))
    refusing = tuple(t for group in GROUPS if group.dead_letters for t in group.topics)
    assert tracker.write == SELF | dead_letters(refusing)
    assert gateway.write == ASKED | {Topic.ADMIN.value} | SELF | OWN


def test_a_submitter_asks_of_jobs_alone() -> None:
    rights = read_rights()
    assert rights["submitter"].write == ASKED
    assert rights["administrator"].write == ASKED | {Topic.ADMIN.value}
    fields = [model.model_fields for model in catalog()[Topic.REQUESTS].events.values()]
    assert all("job_id" in names for names in fields)


def test_agents_write_what_the_catalog_says_is_theirs() -> None:
    agent = read_rights()["agent"]
    owners = {"node agents", "workers and SDKs"}
    own = {topic.value for topic, entry in catalog().items() if entry.owner in owners}
    assert agent.write == own | {Topic.METRICS.value}
    assert agent.read == {Topic.SCHEDULING.value, Topic.FAULTS.value}


def test_a_log_has_one_writer_and_a_transactional_id_one_holder() -> None:
    rights = read_rights()
    for topic, entry in catalog().items():
        if entry.kind == "log":
            assert [p for p, right in rights.items() if topic.value in right.write] == [entry.owner]
    held = [right.transactional_id for right in rights.values() if right.transactional_id]
    assert len(held) == len(set(held)) == len(DECIDERS)


def test_progress_is_written_by_the_live_view_alone() -> None:
    rights = read_rights()
    assert rights["live-view"].read == {Topic.STEPS, Topic.PROGRESS}
    assert rights["live-view"].write == {Topic.PROGRESS} | SELF
    assert rights["live-view"].groups == (CLIENT,)
    assert [p for p, right in rights.items() if Topic.PROGRESS in right.write] == ["live-view"]
    assert catalog()[Topic.PROGRESS].owner == "live-view"


def test_metrics_are_written_by_the_mlflow_server_and_by_agents() -> None:
    rights = read_rights()
    read = {Topic.METRICS, Topic.SCHEDULING, Topic.FAULTS, Topic.PROGRESS}
    assert rights["mlflow"].read == read
    assert rights["mlflow"].write == {Topic.METRICS, Topic.TRIALS} | SELF
    writers = {name for name, right in rights.items() if Topic.METRICS in right.write}
    assert writers == {"mlflow", "agent"}
    assert [name for name, right in rights.items() if Topic.TRIALS in right.write] == ["mlflow"]


def test_no_agent_or_client_announces_a_service_s_release() -> None:
    writers = {name for name, right in read_rights().items() if Topic.PARTS.value in right.write}
    assert writers == {"tracker", "gateway", "live-view", "mlflow"} | {*DECIDERS}


def test_no_other_part_sees_hashes_of_tokens_or_writes_the_audit_log() -> None:
    rights = read_rights()
    for topic in OWN:
        assert [name for name, right in rights.items() if topic in right.write] == ["gateway"]
    assert [name for name, right in rights.items() if Topic.TOKENS in right.read] == ["gateway"]


def test_every_topic_is_somebody_s() -> None:
    read = {name for right in read_rights().values() for name in right.read}
    written = {name for right in read_rights().values() for name in right.write}
    assert read == {*Topic} | dead_letters((*Topic,))
    deciders = [known.make() for known in DECIDERS.values()]
    refused = {topic for one in deciders for topic in (*one.inputs, *one.signals)}
    assert written >= {*Topic} | dead_letters(tuple(refused))


def test_the_page_has_the_table_of_the_file() -> None:
    assert table(read_rights()) in PAGE.read_text(encoding="utf-8")


def test_no_principal_reads_another_s_groups() -> None:
    groups = [group for right in read_rights().values() for group in right.groups]
    assert len(groups) == len(set(groups))
    for one in groups:
        assert [other for other in groups if other.startswith(one)] == [one]
