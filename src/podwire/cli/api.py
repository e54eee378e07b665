"""How commands reach an API: they wait for it as long as ``--request-timeout`` says.

Without the option an answer has to begin within ``PATIENCE_S``, whatever the server does, and may then take as long as
long lists do; with it, each request has to be answered whole in that time, as with kubectl.
"""

import os
import re

import click

from podwire.kube.client import Client
from podwire.kube.config import PATIENCE_S, ApiConfig, load, patient
from podwire.proxy.settings import parse_seconds
from podwire.runtime.clock import SystemClock

_NUMBER = re.compile(r"\d+(\.\d+)?")
_KEY = "podwire.cli.api"
"""Where the command's context keeps the seconds."""


def _keep(context: click.Context, _option: click.Parameter, text: str | None) -> None:
    if text is None:
        return
    try:
        context.meta[_KEY] = float(text) if _NUMBER.fullmatch(text) else float(parse_seconds(text))
    except ValueError as problem:
        raise click.BadParameter(str(problem)) from problem


request_timeout = click.option(
    "--request-timeout",
    metavar="TIME",
    expose_value=False,
    callback=_keep,
    help=f"For one answer of the API: 30s, 2m; 0 is for ever.  [default: {PATIENCE_S:g}s until it begins]",
)
"""The option; :func:`client_of` heeds it."""


def client_of(kubeconfig: str | None) -> Client:
    """A client for the cluster of a kubeconfig, of ``$KUBECONFIG``, or of this pod.

    Raises: ConfigError.
    """
    return Client(within(load(kubeconfig, os.environ)), SystemClock())


def within(config: ApiConfig) -> ApiConfig:
    """The API, waited for as the command was told."""
    context = click.get_current_context(silent=True)
    seconds = context.meta.get(_KEY) if context is not None else None
    return patient(config) if seconds is None else patient(config, seconds or None, seconds or None)
