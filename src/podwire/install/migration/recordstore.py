"""Reads and writes the record of a migration, a ConfigMap."""

from podwire.install.migration import record
from podwire.install.migration.record import Direction, MigrationRecord, NodeRecord
from podwire.kube.client import Client
from podwire.kube.configrecord import ConfigRecord


class RecordStore:
    """The record in one cluster; ``namespace`` is podwire's."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._record = ConfigRecord(client, namespace, record.NAME)

    async def read(self) -> MigrationRecord:
        """How far the migration is.

        Raises: ConfigError when the ConfigMap was changed by hand into something else.
        """
        return record.parse(await self._record.read())

    async def begin(self, direction: Direction) -> None:
        """Writes the direction."""
        await self._record.write({"direction": direction})

    async def write_node(self, name: str, entry: NodeRecord) -> None:
        """Writes the record of a node."""
        await self._record.write(record.entry(name, entry))

    async def delete(self) -> None:
        """Deletes the record."""
        await self._record.delete()
