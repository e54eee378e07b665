"""Runs a command of an operator alone: one run at a time in a cluster, decided by a Lease.

A second run is refused with the name of the first. A run that was killed holds the Lease for six seconds more.
"""

import os
import socket
from collections.abc import Awaitable, Callable
from typing import TypeVar

from podwire.errors import ClusterError, PodwireError
from podwire.kube.client import Client
from podwire.kube.lease import Election, LeaderElection

T = TypeVar("T")


async def run_alone(client: Client, namespace: str, name: str, body: Callable[[], Awaitable[T]]) -> T:
    """The result of ``body``, which runs while this process holds the Lease ``name``.

    Raises: ClusterError when another run is at work, or when the Lease is lost; the errors of ``body``.
    """
    identity = f"{socket.gethostname()}-{os.getpid()}"
    election = Election(namespace, name, identity, duration_s=6.0, renew_deadline_s=4.5, retry_s=0.5)
    results: list[T] = []
    failures: list[Exception] = []

    async def work() -> None:
        try:
            results.append(await body())
        except (PodwireError, OSError) as failure:
            failures.append(failure)

    await LeaderElection(client, election).run_alone(work)
    if failures:
        raise failures[0]
    if not results:
        raise ClusterError("the Lease was lost; run the command again to continue")
    return results[0]
