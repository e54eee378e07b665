"""How commands reach an API server, and the option ``--request-timeout``.

Without the option, an answer must begin within ``PATIENCE_S`` and may then take as long as it needs, as long lists do.
With the option, each answer must be complete within that time, as with kubectl.
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
    help=f"For one answer of the API: 30s, 2m; 0: no limit.  [default: {PATIENCE_S:g}s until it begins]",
)
"""The option; :func:`client_of` applies it."""


def client_of(kubeconfig: str | None) -> Client:
    """A client for the cluster of a kubeconfig, of ``$KUBECONFIG``, or of this pod.

    Raises: ConfigError.
    """
    return Client(within(load(kubeconfig, os.environ)), SystemClock())


def within(config: ApiConfig) -> ApiConfig:
    """The API with the time limits of the command's option."""
    context = click.get_current_context(silent=True)
    seconds = context.meta.get(_KEY) if context is not None else None
    return patient(config) if seconds is None else patient(config, seconds or None, seconds or None)
