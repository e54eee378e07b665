"""Runs a command on the nodes of a cluster for the command line."""

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from podwire.install.nodecommands import CommandsOnNodes


async def run_on_nodes(
    kubeconfig: str | None,
    namespace: str,
    named: Sequence[str],
    command: "Callable[[CommandsOnNodes], Awaitable[bool]]",
) -> int:
    """Runs a command on all nodes or the named ones, and prints its output; the exit status.

    Raises: ConfigError, ClusterError, ApiError, ApiUnreachable.
    """
    from podwire.install.nodecommands import CommandsOnNodes
    from podwire.kube.client import Client
    from podwire.kube.config import load
    from podwire.runtime.clock import SystemClock

    client = Client(load(kubeconfig, os.environ), SystemClock(), manager="podwire-nodes")
    try:
        return 0 if await command(CommandsOnNodes(client, namespace, named, click.echo)) else 1
    finally:
        await client.close()
