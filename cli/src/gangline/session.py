"""Options of all commands that ask the platform: --url, --token, --data-dir and --json."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from gangline.output import Output
from gangline.sdk import Gangline, connect

Url = Annotated[str | None, typer.Option("--url", help="The gateway's URL; default: GANGLINE_URL.")]
Token = Annotated[
    str | None,
    typer.Option(
        "--token", help="Your token; prefer the variable GANGLINE_TOKEN.", metavar="TOKEN"
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Data directory of a local platform [~/.gangline]."),
]
Json = Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")]


@dataclass(frozen=True)
class Target:
    """Which platform to talk to, as far as the command line says."""

    url: str | None = None
    token: str | None = field(default=None, repr=False)
    data_dir: Path | None = None
    json: bool = False


@dataclass(frozen=True)
class Session:
    """One command's connection and output."""

    client: Gangline
    out: Output


def target_of(
    context: typer.Context,
    url: str | None = None,
    token: str | None = None,
    data_dir: Path | None = None,
    *,
    json: bool = False,
) -> Target:
    """A command's own options, and else those given before the command's name."""
    outer = context.find_object(Target) or Target()
    return Target(
        url or outer.url, token or outer.token, data_dir or outer.data_dir, json or outer.json
    )


def asks_platform(body: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function whose first parameter is a Session.

    The command has the shared options too; given before the command's name they count as well.
    """

    @functools.wraps(body)
    def command(
        context: typer.Context,
        *arguments: object,
        url: str | None = None,
        token: str | None = None,
        data_dir: Path | None = None,
        json: bool = False,
        **options: object,
    ) -> None:
        target = target_of(context, url, token, data_dir, json=json)
        if context.invoked_subcommand is not None:
            context.obj = target
            return
        out = Output(json=target.json)
        with connect(target.url, target.token, target.data_dir, notice=out.note) as client:
            body(Session(client, out), *arguments, **options)

    return with_options(
        command, body, {"url": Url, "token": Token, "data_dir": DataDir, "json": Json}
    )


def with_options(
    command: Callable[..., None], body: Callable[..., None], shared: Mapping[str, Any]
) -> Callable[..., None]:
    """Give `command` the options of `body`, except its first parameter, and the shared ones.

    `shared`: the annotation of each; all are None if they are not given, and `json` is False.
    """
    hints = get_type_hints(body, include_extras=True)
    own = list(inspect.signature(body).parameters.values())[1:]
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD),
        *(p.replace(kind=keyword, annotation=hints[p.name]) for p in own),
        *(
            inspect.Parameter(name, keyword, default=False if name == "json" else None)
            for name in shared
        ),
    ]
    annotations = {"context": typer.Context, **{p.name: hints[p.name] for p in own}, **shared}
    parameters = [p.replace(annotation=annotations[p.name]) for p in parameters]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = annotations
    command.__dict__.pop("__wrapped__", None)
    return command
