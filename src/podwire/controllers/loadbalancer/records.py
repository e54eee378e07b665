"""The records of who holds each address, in the API: read by an informer, written at the version that was read."""

from collections.abc import Callable, Iterable, Iterator

from podwire.cluster.names import LOAD_BALANCER_BLOCK
from podwire.errors import AlreadyExists, Conflict, NotFound
from podwire.kube.client import Client
from podwire.kube.informer import Informer
from podwire.kube.ownwrites import number
from podwire.kube.resources import CONFIGMAPS, Json
from podwire.loadbalancer.blocks import Holder, Holders, block_name, read_block, render_block, with_holder
from podwire.loadbalancer.ranges import Address
from podwire.model.configmap import ConfigMap


class Records:
    """The records as they were last read or written by this process."""

    def __init__(
        self, client: Client, informer: Informer[ConfigMap], namespace: str, changed: Callable[[], None]
    ) -> None:
        """``changed`` is called when another process has written a record."""
        self.informer = informer
        self._client = client
        self._namespace = namespace
        self._blocks: dict[str, tuple[str, Holders]] = {}
        """The version and the holders of each record, by its name."""
        self._addresses: dict[str, set[Address]] = {}
        """The addresses that the records name, by the key of the Service."""
        self._on_change = changed
        informer.subscribe(self._observed)

    def holders(self) -> Iterator[tuple[Address, str, str]]:
        """Address, Service and uid of each holder."""
        for _, holders in self._blocks.values():
            for address, entries in holders.items():
                for entry in entries:
                    yield address, entry.key, entry.uid

    async def write(self, changes: Iterable[tuple[Holder, tuple[Address, ...]]]) -> bool:
        """Makes Services hold exactly these addresses; False when another process has changed a record meanwhile.

        The records are current then, and some of the changes may be written.
        """
        desired: dict[str, dict[Address, tuple[Holder, ...]]] = {}
        for holder, addresses in changes:
            before = self._addresses.get(holder.key, set())
            if before == set(addresses) and all(holder in self._holders_of(address) for address in addresses):
                continue
            for address in before | set(addresses):
                name = block_name(address)
                if name not in desired:
                    desired[name] = dict(self._blocks[name][1]) if name in self._blocks else {}
                block = desired[name]
                block[address] = with_holder(block.get(address, ()), holder, holds=address in addresses)
                if not block[address]:
                    del block[address]
        written = True
        for name, holders in sorted(desired.items()):
            written = await self._write(name, holders) and written
        return written

    def _holders_of(self, address: Address) -> tuple[Holder, ...]:
        block = self._blocks.get(block_name(address))
        return block[1].get(address, ()) if block is not None else ()

    async def _write(self, name: str, holders: Holders) -> bool:
        version = self._blocks[name][0] if name in self._blocks else ""
        body: Json = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": self._namespace, "labels": {LOAD_BALANCER_BLOCK: "true"}},
            "data": render_block(holders),
        }
        try:
            if version:
                body["metadata"]["resourceVersion"] = version
                answer = await self._client.update(CONFIGMAPS, body, self._namespace, name=name)
            else:
                answer = await self._client.create(CONFIGMAPS, body, self._namespace)
        except (Conflict, AlreadyExists, NotFound):
            await self._read(name)
            return False
        self._take(name, answer["metadata"]["resourceVersion"], holders)
        return True

    async def _read(self, name: str) -> None:
        try:
            answer = await self._client.get(CONFIGMAPS, name, self._namespace)
        except NotFound:
            self._forget(name)
            return
        self._take(name, answer["metadata"]["resourceVersion"], read_block(answer.get("data") or {}))

    def _take(self, name: str, version: str, holders: Holders) -> None:
        self._forget(name)
        self._blocks[name] = (version, holders)
        for address, entries in holders.items():
            for entry in entries:
                self._addresses.setdefault(entry.key, set()).add(address)

    def _forget(self, name: str) -> None:
        _, holders = self._blocks.pop(name, ("", {}))
        for address, entries in holders.items():
            for entry in entries:
                addresses = self._addresses.get(entry.key, set())
                addresses.discard(address)
                if not addresses:
                    self._addresses.pop(entry.key, None)

    def _observed(self, _key: str, old: ConfigMap | None, new: ConfigMap | None) -> None:
        """Takes over what another process wrote; own writes come back at the version that is known already."""
        item = new or old
        if item is None:
            return
        name = item.metadata.name
        known, holders = self._blocks.get(name, ("", {}))
        if new is None:
            if known and number(known) <= number(item.metadata.resource_version):
                self._forget(name)
                self._on_change()
            return
        if known and number(new.metadata.resource_version) <= number(known):
            return
        read = read_block(new.data)
        self._take(name, new.metadata.resource_version, read)
        if read != holders:
            self._on_change()
