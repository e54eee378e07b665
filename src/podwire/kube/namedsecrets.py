"""Secrets of one namespace, each followed by a watch of its own, since a program may read few of them.

Cost: one watch for each Secret.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus

from podwire.errors import ApiError, ApiUnreachable, ConfigError, ProtocolError
from podwire.kube.client import Client
from podwire.kube.informer import Informer
from podwire.kube.resources import SECRETS
from podwire.model.secret import Secret
from podwire.runtime.supervise import Supervisor

_WAIT_S = 5.0
_ASK_S = 0.25


class NamedSecrets:
    """The present form of the Secrets that :meth:`follow` names; ``changed`` is called after each change of them."""

    def __init__(self, client: Client, namespace: str, changed: Callable[[], None]) -> None:
        self.namespace = namespace
        self._client = client
        self._changed = changed
        self._followed: dict[str, tuple[Informer[Secret], asyncio.Task[None]]] = {}

    def find(self, name: str) -> Secret | None:
        """The Secret; None when there is none.

        Raises: ConfigError while the Secret is not readable.
        """
        informer, _ = self._followed.get(name, (None, None))
        where = f"{self.namespace}/{name}"
        if informer is None or not informer.synced.is_set():
            problem = "is not readable for the agents; a Role must let them list and watch it"
            raise ConfigError(f"Secret {where}", "", problem)
        return informer.objects.get(where)

    def text(self, name: str, key: str) -> str | None:
        """The value of a key; None when there is no such Secret or key.

        Raises: ConfigError while the Secret is not readable.
        """
        secret = self.find(name)
        return secret.text(key) if secret is not None else None

    async def follow(self, names: set[str], supervisor: Supervisor) -> None:
        """Follows exactly these Secrets; returns when all are known, or after five seconds."""
        for name in self._followed.keys() - names:
            self._followed.pop(name)[1].cancel()
        new = names - self._followed.keys()
        for name in sorted(new):
            selector = f"metadata.name={name}"
            informer: Informer[Secret] = Informer(
                self._client, SECRETS, namespace=self.namespace, field_selector=selector, decode_as=Secret
            )
            informer.subscribe(lambda _key, _old, _new: self._changed())
            self._followed[name] = (informer, supervisor.start(f"secret {name}", informer.run))
        try:
            async with asyncio.timeout(_WAIT_S):
                for name in new:
                    await self._followed[name][0].synced.wait()
        except TimeoutError:
            pass

    async def answered(self, names: set[str]) -> None:
        """Returns when the API has returned or refused each of these Secrets, however long it is away."""
        for name in sorted(names):
            informer, _ = self._followed[name]
            while not informer.synced.is_set() and not await self._is_refused(name):
                await self._client.clock.sleep(_ASK_S)

    async def _is_refused(self, name: str) -> bool:
        try:
            await self._client.list(SECRETS, self.namespace, field_selector=f"metadata.name={name}", limit=1)
        except ApiError as failure:
            return failure.code == HTTPStatus.FORBIDDEN
        except (ApiUnreachable, ProtocolError):
            pass
        return False
