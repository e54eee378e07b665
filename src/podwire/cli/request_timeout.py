"""The option ``--request-timeout``; :mod:`podwire.cli.api` applies it. This module imports little, for completion."""

import re

import click

KEY = "podwire.cli.request_timeout"
"""Where the command's context keeps the seconds."""
_NUMBER = re.compile(r"\d+(\.\d+)?")


def _keep(context: click.Context, _option: click.Parameter, text: str | None) -> None:
    if text is None:
        return
    from podwire.proxy.settings import parse_seconds

    try:
        context.meta[KEY] = float(text) if _NUMBER.fullmatch(text) else float(parse_seconds(text))
    except ValueError as problem:
        raise click.BadParameter(str(problem)) from problem


request_timeout = click.option(
    "--request-timeout",
    metavar="TIME",
    expose_value=False,
    callback=_keep,
    help="Limit for an answer of the API: 30s, 2m; 0: none.  [default: 10s until the answer begins]",
)
"""The option; commands with it read the API."""
