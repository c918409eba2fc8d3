"""The SDK reads what the real gateway answers, as the same values."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline import CliError, connect
from gangline_schemas.team_limits import GpuTypeLimit
from support.builders.gateway import TOKENS, GatewayHarness, job, served


def test_answers_are_read_as_the_values_that_were_built(tmp_path: Path) -> None:
    harness = GatewayHarness(tmp_path)
    with served(harness) as client, connect(str(client.base_url), TOKENS["admin"]) as sdk:
        team = sdk.configure_team("nlp", gpu_limit=8, gpu_types=[GpuTypeLimit(gpu_type="cpu")])
        assert sdk.teams() == [team]
        harness.join("n1")
        node, spec = sdk.nodes()[0], job(gpus=2, hyperparameters={"steps": 5})
        assert (node.node_id, node.isolation.strength, len(node.gpus)) == ("n1", 0, 4)
        planned = sdk.dry_run(spec)
        assert (planned.rejected, planned.notes, planned.spec.resources.gpus) == (False, [], 2)
        assert sdk.what_if(spec).starts == "now"
        submitted = sdk.submit(spec, "key")
        harness.wait(lambda: sdk.get(submitted.job_id).nodes)
        found = sdk.get(submitted.job_id)
        assert (found.total_steps, found.gpus_allocated, found.ended) == (5, 2, False)
        assert found.spec == planned.spec
        waits = sdk.submit(job(gpus=4), "other")
        harness.wait(lambda: sdk.get(waits.job_id).waiting)
        (entry,) = sdk.queue().queue
        assert (entry.job_id, entry.waiting) == (waits.job_id, sdk.get(waits.job_id).waiting)
        told = sdk.explain(waits.job_id).waits_for
        assert told is not None
        assert (told.position, told.gpus.wanted) == (1, 4)
        assert {item.job_id for item in sdk.list()} == {submitted.job_id, waits.job_id}
        assert sdk.checkpoint_list(found.job_id).interval_s is not None
        assert {event.type for event in sdk.events(["scheduling"])} >= {"gang.allocated"}
        assert sdk.whoami().role == "admin"
        with pytest.raises(CliError, match="'nlpp' is not known; known: nlp"):
            sdk.submit(job("nlpp"))
