"""The `gangline` command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from typing import Annotated, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command

from gangline.commands import (
    access,
    alerts,
    approvals,
    browser,
    checkpoints,
    cluster,
    compare,
    data,
    demo,
    ettr,
    events,
    exchange,
    health,
    incidents,
    jobs,
    kafka,
    login,
    logs,
    models,
    nodes,
    pipelines,
    planning,
    platform,
    profiles,
    questions,
    replay,
    report,
    reproduce,
    runs,
    simulate,
    studies,
    submit,
    sync,
    tensorboard,
    watch,
)
from gangline.errors import CliError, ExitCode
from gangline.session import DataDir, Json, Target, Token, Url, asks_platform

app = typer.Typer(
    name="gangline",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
teams = typer.Typer(invoke_without_command=True, help="Teams, their limits and what they use.")
snapshots = typer.Typer(no_args_is_help=True, help="Token snapshots, from which gangs train.")
watched = typer.Typer(invoke_without_command=True, help="Alerts and their silences.")
searches = typer.Typer(no_args_is_help=True, help="Searches for the best parameters of a job.")
piped = typer.Typer(
    no_args_is_help=True, help="Pipelines: steps that are jobs, and what starts them."
)
registered = typer.Typer(
    invoke_without_command=True, help="Registered models: gates, promotions, rollbacks, drift."
)
gates = typer.Typer(no_args_is_help=True, help="Gates, which protect aliases.")
brokers = typer.Typer(no_args_is_help=True, help="Users and rights of the parts on Kafka.")
users = typer.Typer(no_args_is_help=True, help="A user for each part, with its password.")
acls = typer.Typer(no_args_is_help=True, help="The rights of each part, from acls.toml.")
machines = typer.Typer(
    no_args_is_help=True, help="Nodes: tokens for them; this machine joins and leaves."
)
own_tokens = typer.Typer(no_args_is_help=True, help="Your personal access tokens.")
reports = typer.Typer(no_args_is_help=True, help="Use of the GPUs over a period.")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(version("gangline"))
        raise typer.Exit


@app.callback()
def gangline(
    context: typer.Context,
    url: Url = None,
    token: Token = None,
    data_dir: DataDir = None,
    json: Json = False,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Submit gangs of training workers, follow them, and compare their runs."""
    context.obj = Target(url, token, data_dir, json)


_COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Jobs": {
        "submit": submit.submit,
        "list": jobs.list_jobs,
        "show": jobs.show,
        "explain": questions.explain,
        "what-if": questions.what_if,
        "watch": watch.watch,
        "logs": logs.logs,
        "ranks": logs.ranks,
        "cancel": jobs.cancel,
        "priority": jobs.priority,
        "checkpoints": checkpoints.checkpoints,
        "restore": logs.restore,
    },
    "Runs": {
        "runs": runs.runs,
        "open": browser.open_page,
        "metrics": runs.metrics,
        "compare": compare.compare,
        "tag": runs.tag,
        "reproduce": reproduce.reproduce,
        "sync": sync.sync,
        "export": exchange.export,
        "import": exchange.import_runs,
        "tensorboard": tensorboard.tensorboard,
    },
    "Cluster": {
        "nodes": cluster.nodes,
        "drain": cluster.drain,
        "queue": cluster.queue,
        "incidents": incidents.incidents,
        "notifications": alerts.notifications,
        "events": events.events,
        "health": health.health,
        "search": health.search,
    },
    "Access": {
        "audit": access.audit,
    },
}
for _panel, _bodies in _COMMANDS.items():
    for _name, _body in _bodies.items():
        app.command(_name, rich_help_panel=_panel)(asks_platform(_body))
app.command(rich_help_panel="Platform")(platform.up)
app.command(rich_help_panel="Platform")(demo.demo)
app.command(rich_help_panel="Platform")(platform.doctor)
app.command(rich_help_panel="Platform")(platform.service)
app.command(rich_help_panel="Cluster")(simulate.simulate)
app.command(rich_help_panel="Cluster")(replay.replay)
app.command(rich_help_panel="Cluster")(ettr.ettr)
app.command(rich_help_panel="Cluster")(planning.plan)
teams.callback()(asks_platform(cluster.teams))
teams.command("set")(asks_platform(cluster.teams_set))
app.add_typer(teams, name="teams", rich_help_panel="Cluster")
watched.callback()(asks_platform(alerts.alerts))
watched.command("silence")(asks_platform(alerts.silence))
watched.command("silences")(asks_platform(alerts.silences))
watched.command("unsilence")(asks_platform(alerts.unsilence))
app.add_typer(watched, name="alerts", rich_help_panel="Cluster")
searches.command("submit")(asks_platform(studies.submit))
searches.command("list")(asks_platform(studies.list_studies))
searches.command("show")(asks_platform(studies.show))
searches.command("trials")(asks_platform(studies.trials))
searches.command("best")(asks_platform(studies.best))
searches.command("importance")(asks_platform(studies.importance))
searches.command("curves")(asks_platform(studies.curves))
searches.command("parallel")(asks_platform(studies.parallel))
searches.command("stop")(asks_platform(studies.stop))
searches.command("export")(asks_platform(studies.export))
searches.command("import")(studies.import_study)
app.add_typer(searches, name="study", rich_help_panel="Runs")
snapshots.command("prepare")(data.prepare)
snapshots.command("join")(data.join)
snapshots.command("index")(data.index)
snapshots.command("verify")(data.verify)
snapshots.command("show")(data.show)
snapshots.command("profile")(asks_platform(profiles.profile))
snapshots.command("approve")(asks_platform(approvals.approve))
snapshots.command("approvals")(asks_platform(approvals.approvals))
snapshots.command("announce")(asks_platform(pipelines.announce))
app.add_typer(snapshots, name="data", rich_help_panel="Runs")
_PIPELINE: dict[str, Callable[..., None]] = {
    "apply": pipelines.apply,
    "run": pipelines.run,
    "list": pipelines.list_pipelines,
    "show": pipelines.show,
    "runs": pipelines.runs,
    "run-show": pipelines.run_show,
    "why": pipelines.why,
    "download": pipelines.download,
    "retry": pipelines.retry,
    "cancel": pipelines.cancel,
    "pause": pipelines.pause,
    "resume": pipelines.resume,
    "remove": pipelines.remove,
}
for _name, _body in _PIPELINE.items():
    piped.command(_name)(asks_platform(_body))
app.add_typer(piped, name="pipeline", rich_help_panel="Runs")
registered.callback()(asks_platform(models.models))
registered.command("show")(asks_platform(models.show))
registered.command("register")(asks_platform(models.register))
registered.command("report")(asks_platform(models.report))
registered.command("serving")(asks_platform(models.serving))
registered.command("approve")(asks_platform(models.approve))
registered.command("check")(asks_platform(models.check))
registered.command("promote")(asks_platform(models.promote))
registered.command("rollback")(asks_platform(models.rollback))
registered.command("history")(asks_platform(models.history))
registered.command("drift")(asks_platform(models.drift))
registered.command("lineage")(asks_platform(models.lineage))
gates.command("apply")(asks_platform(models.gate_apply))
gates.command("show")(asks_platform(models.gate_show))
gates.command("remove")(asks_platform(models.gate_remove))
registered.add_typer(gates, name="gate")
app.add_typer(registered, name="models", rich_help_panel="Runs")
machines.command("token")(asks_platform(nodes.token))
machines.command("tokens")(asks_platform(nodes.tokens))
machines.command("revoke")(asks_platform(nodes.revoke))
machines.command("join")(nodes.join)
machines.command("start")(nodes.start)
machines.command("leave")(nodes.leave)
app.add_typer(machines, name="node", rich_help_panel="Platform")
users.command("plan")(kafka.users_plan)
users.command("apply")(kafka.users_apply)
users.command("rotate")(kafka.users_rotate)
acls.command("plan")(kafka.acls_plan)
acls.command("apply")(kafka.acls_apply)
acls.command("show")(kafka.acls_show)
brokers.add_typer(users, name="users")
brokers.add_typer(acls, name="acls")
brokers.command("topics")(kafka.topics)
brokers.command("renew")(kafka.renew)
app.add_typer(brokers, name="kafka", rich_help_panel="Platform")
app.command("login", rich_help_panel="Access")(login.login)
app.command("logout", rich_help_panel="Access")(login.logout)
own_tokens.command("create")(asks_platform(access.token_create))
own_tokens.command("list")(asks_platform(access.token_list))
own_tokens.command("revoke")(asks_platform(access.token_revoke))
app.add_typer(own_tokens, name="token", rich_help_panel="Access")
reports.command("utilization")(asks_platform(report.utilization))
reports.command("weekly")(asks_platform(report.weekly))
app.add_typer(reports, name="report", rich_help_panel="Cluster")


@cache
def commands() -> TyperGroup:
    """All that can be typed; built once in a process."""
    return cast("TyperGroup", get_command(app))  # a group: there are many


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a CliError is one line with the way out, never a traceback."""
    try:
        commands()(args=arguments, prog_name="gangline")
    except CliError as error:
        sys.stderr.write(f"error: {error.message}\n")
        if error.hint:
            sys.stderr.write(f"  {error.hint}\n")
        raise SystemExit(int(error.code)) from None
    except BrokenPipeError:
        # The reader (head, less) has seen enough; the interpreter's own flush must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(int(ExitCode.DONE)) from None
    except KeyboardInterrupt:
        raise SystemExit(int(ExitCode.TOOL_ERROR)) from None
