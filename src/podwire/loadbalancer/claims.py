"""Which node answers for each address, as the API has it: a Lease for each address that names its holder.

The election (``election``) says which node should answer. Each agent follows the API with a delay of its own, so two
elections may differ for a moment. Therefore a node answers only after it has written its name into the Lease of the
address, at the version that it has read, and only if nobody holds the address or the holder is dead. The former holder
stops to answer before it removes its name. Cost: two writes for each address that moves; none while nothing moves.
"""

from collections.abc import Callable
from http import HTTPStatus

import msgspec

from podwire.cluster.names import L2_CLAIM
from podwire.errors import AlreadyExists, Conflict, NotFound
from podwire.kube.client import Client
from podwire.kube.informer import Informer
from podwire.kube.ownwrites import number
from podwire.kube.resources import LEASES, Json
from podwire.loadbalancer.ranges import Address, parse_address
from podwire.model.node import Lease

_PREFIX = "podwire-l2-address-"


def claim_name(address: Address) -> str:
    """The name of the Lease of an address."""
    return _PREFIX + (str(address) if address.version == 4 else address.exploded.replace(":", "-"))


def claimed_address(name: str) -> Address | None:
    """The address of the Lease with this name; None for another Lease."""
    text = name.removeprefix(_PREFIX)
    if text == name:
        return None
    return parse_address(text if "." in text else text.replace("-", ":"))


class Claims:
    """The holders of addresses as this process has read or written them last."""

    def __init__(self, client: Client, namespace: str, changed: Callable[[], None]) -> None:
        self.informer: Informer[Lease] = Informer(client, LEASES, namespace=namespace, label_selector=L2_CLAIM)
        self._client = client
        self._namespace = namespace
        self._changed = changed
        self._claims: dict[Address, tuple[str, str]] = {}
        """Version of the Lease, and the holder."""
        self.informer.subscribe(self._observed)

    def holder(self, address: Address) -> str:
        """The node that holds an address; empty for none."""
        return self._claims.get(address, ("", ""))[1]

    def held_by(self, node: str) -> tuple[Address, ...]:
        """The addresses that a node holds."""
        return tuple(address for address, (_, holder) in self._claims.items() if holder == node)

    def known(self) -> tuple[Address, ...]:
        """The addresses that have a Lease."""
        return tuple(self._claims)

    async def take(self, address: Address, node: str) -> bool:
        """Makes a node the holder of an address, in place of the holder that was read; False: it has changed.

        Raises: ApiError, ApiUnreachable, ProtocolError.
        """
        version, _ = self._claims.get(address, ("", ""))
        name = claim_name(address)
        body: Json = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": self._namespace, "labels": {L2_CLAIM: "true"}},
            "spec": {"holderIdentity": node},
        }
        try:
            if version:
                patch = {"metadata": {"resourceVersion": version}, "spec": body["spec"]}
                answer = await self._client.patch(LEASES, name, patch, self._namespace)
            else:
                answer = await self._client.create(LEASES, body, self._namespace)
        except (Conflict, AlreadyExists):
            return False
        except NotFound:
            self._claims.pop(address, None)
            return False
        self._claims[address] = (answer["metadata"]["resourceVersion"], node)
        return True

    async def give_up(self, address: Address, node: str) -> None:
        """Removes the name of a node from the Lease of an address for which it no longer answers.

        Raises: ApiError, ApiUnreachable, ProtocolError.
        """
        version, holder = self._claims.get(address, ("", ""))
        if holder != node:
            return
        try:
            patch = {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": None}}
            answer = await self._client.patch(LEASES, claim_name(address), patch, self._namespace)
        except (Conflict, NotFound):
            return  # The informer will say who holds the address.
        self._claims[address] = (answer["metadata"]["resourceVersion"], "")

    async def forget(self, address: Address) -> None:
        """Deletes the Lease of an address that no Service has, if it is still as it was read.

        Raises: ApiUnreachable.
        """
        version, _ = self._claims.get(address, ("", ""))
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"resourceVersion": version}}
        answer = await self._client.raw(
            "DELETE",
            LEASES.path(self._namespace, claim_name(address)),
            None,
            msgspec.json.encode(options),
            {"content-type": "application/json"},
        )
        if answer.status < HTTPStatus.BAD_REQUEST:
            self._claims.pop(address, None)

    def _observed(self, _key: str, old: Lease | None, new: Lease | None) -> None:
        item = new or old
        address = claimed_address(item.metadata.name) if item is not None else None
        if item is None or address is None:
            return
        version, _ = self._claims.get(address, ("", ""))
        if version and number(item.metadata.resource_version) < number(version):
            return
        if new is None:
            self._claims.pop(address, None)
        else:
            self._claims[address] = (new.metadata.resource_version, new.spec.holder_identity or "")
        self._changed()
