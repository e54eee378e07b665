"""Kinds that an API may not serve, such as those of a CustomResourceDefinition that is not installed.

Such a kind has no objects until the API serves it. Cost while it is missing: one request every 5 s.
"""

from typing import TypeVar

from podwire.errors import NotFound
from podwire.kube.client import Client
from podwire.kube.informer import Informer
from podwire.kube.resources import Resource
from podwire.runtime.backoff import Backoff

T = TypeVar("T")

_RETRY_S = (0.25, 5.0)
"""Shortest and longest delay between two requests that ask whether the API serves the kind."""


async def list_if_served(client: Client, resource: Resource[T]) -> tuple[T, ...]:
    """All objects of a kind; none when the API does not serve the kind.

    Raises: ApiError, ApiUnreachable.
    """
    try:
        return tuple((await client.list(resource)).items)
    except NotFound:
        return ()


async def follow_when_served(client: Client, informer: Informer[T]) -> None:
    """Runs an informer until cancelled, from the moment when the API serves the kind.

    Until then the informer is synced and has no objects.

    Raises: ApiError, ApiUnreachable while it is not known whether the API serves the kind.
    """
    backoff = Backoff(*_RETRY_S)
    while True:
        try:
            await client.list(informer.resource, limit=1)
        except NotFound:
            informer.synced.set()
            await client.clock.sleep(backoff.next_delay_s())
        else:
            break
    await informer.run()
