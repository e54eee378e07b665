"""Reads and writes the record of a migration, a ConfigMap."""

from collections.abc import Mapping

from podwire.errors import NotFound
from podwire.install.migration import record
from podwire.install.migration.record import Direction, MigrationRecord, NodeRecord
from podwire.kube.client import Client
from podwire.kube.resources import CONFIGMAPS


class RecordStore:
    """The record in one cluster; ``namespace`` is podwire's."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def read(self) -> MigrationRecord:
        """How far the migration is.

        Raises: ConfigError when the ConfigMap was changed by hand into something else.
        """
        try:
            body = await self._client.get(CONFIGMAPS, record.NAME, self._namespace)
        except NotFound:
            return MigrationRecord()
        return record.parse(body.get("data") or {})

    async def begin(self, direction: Direction) -> None:
        """Writes the direction."""
        await self._write({"direction": direction})

    async def write_node(self, name: str, entry: NodeRecord) -> None:
        """Writes the record of a node."""
        await self._write(record.entry(name, entry))

    async def delete(self) -> None:
        """Deletes the record."""
        try:
            await self._client.delete(CONFIGMAPS, record.NAME, self._namespace)
        except NotFound:
            pass

    async def _write(self, data: Mapping[str, str]) -> None:
        """Writes keys of the record; further keys stay."""
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": record.NAME}, "data": dict(data)}
        try:
            await self._client.patch(CONFIGMAPS, record.NAME, {"data": dict(data)}, self._namespace)
        except NotFound:
            await self._client.create(CONFIGMAPS, body, self._namespace)
