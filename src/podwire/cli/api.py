"""API clients of commands, with the option ``--request-timeout`` (:mod:`podwire.cli.request_timeout`).

Without the option, an answer must begin within ``PATIENCE_S`` and may then take as long as it needs, as long lists do.
With the option, each answer must be complete within that time, as with kubectl.
"""

import os

import click

from podwire.cli.request_timeout import KEY
from podwire.kube.client import Client
from podwire.kube.config import ApiConfig, load, patient
from podwire.runtime.clock import SystemClock


def client_of(kubeconfig: str | None) -> Client:
    """A client for the cluster of a kubeconfig, of ``$KUBECONFIG``, or of this pod.

    Raises: ConfigError.
    """
    return Client(within(load(kubeconfig, os.environ)), SystemClock())


def within(config: ApiConfig) -> ApiConfig:
    """The API with the time limits of the command's option."""
    context = click.get_current_context(silent=True)
    seconds = context.meta.get(KEY) if context is not None else None
    return patient(config) if seconds is None else patient(config, seconds or None, seconds or None)
