"""Takes a backup back: objects by server-side apply, files of the container runtime, and a comparison of the kernel.

Guarantees: 1. nothing is changed before all contents of the backup were compared with their digests, and before the
cluster was recognized; 2. a field that another manager has changed since is a conflict: it is named, with the manager,
and stays unless ``force`` is set; 3. an object that the API refuses, or a node whose pod fails, does not stop the next
ones, and the exit status is 1; 4. a file of the runtime is replaced by rename, and a file that the backup does not have
stays, and is named; 5. kernel state is compared and not written: podwire's agents restore what is podwire's from the
objects, and the state of others is theirs.
"""

import base64
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from podwire.errors import ApiError, ApiUnreachable, ClusterError, ConfigError, Conflict, NotFound
from podwire.kube.client import Client
from podwire.kube.resources import Json, Resource
from podwire.kube.serverside import ApplyRequest, apply_object
from podwire.upgrade.backup import compare, selection
from podwire.upgrade.backup.clusterread import resources_of
from podwire.upgrade.backup.folder import BackupFolder
from podwire.upgrade.backup.index import BackupEntry, BackupIndex
from podwire.upgrade.backup.save import BackupOptions, read_node
from podwire.upgrade.backup.transfer import NodeFile
from podwire.upgrade.nodecommands import MANAGER, NodeCommands, cluster_id, node_commands

Say = Callable[[str], None]


class Restore:
    """One run; ``problems`` counts what was not taken back."""

    def __init__(self, client: Client, folder: BackupFolder, say: Say, *, force: bool, dry: bool) -> None:
        self._client = client
        self._folder = folder
        self._say = say
        self._force = force
        self._dry = dry
        self.problems = 0

    async def run(self, options: BackupOptions) -> int:
        """Takes the backup back; 0, or 1 when a part of it was refused.

        Raises: ConfigError when the backup is damaged, or of another cluster; ClusterError, ApiUnreachable.
        """
        index = self._folder.open()
        if index.cluster != await cluster_id(self._client):
            raise ConfigError(str(self._folder.path), "cluster", "was made from another cluster")
        await self._objects(list(index.of("object")))
        if options.nodes and index.nodes():
            commands = await node_commands(self._client, options.namespace, options.image, options.folders)
            for node in index.nodes():
                await self._node(commands, node, index)
        return 1 if self.problems else 0

    async def _objects(self, entries: Iterable[BackupEntry]) -> None:
        objects = [msgspec.json.decode(self._folder.content(entry), type=Json) for entry in entries]
        definitions = (obj for obj in objects if obj["kind"] == "CustomResourceDefinition")
        resources = resources_of(definitions)
        for obj in objects:
            resource = resources[obj["apiVersion"], obj["kind"]]
            if selection.is_derived(obj):
                continue
            await self._object(resource, obj)

    async def _object(self, resource: Resource[Json], obj: Json) -> None:
        meta, title = obj["metadata"], selection.title(obj)
        try:
            live = selection.portable(await self._client.get(resource, meta["name"], meta.get("namespace", "")))
        except NotFound:
            live = None
        typed = {"apiVersion": obj["apiVersion"], "kind": obj["kind"]}
        if live is not None and not list(selection.differing(obj, typed | live)):
            return
        try:
            after = await self._apply(resource, obj)
        except Conflict as failure:
            self.problems += 1
            self._say(f"{title}: conflict: {failure.message.strip()}; --force takes these fields back")
            return
        except ApiError as failure:
            self.problems += 1
            self._say(f"{title}: refused: {failure.message.strip()}")
            return
        verb = "created" if live is None else "restored"
        self._say(f"{title}: {f'would be {verb}' if self._dry else verb}")
        for path in selection.differing(obj, typed | selection.portable(after)):
            self._say(f"{title}: {path} still differs: another manager has set it")

    async def _apply(self, resource: Resource[Json], obj: Json) -> Json:
        body = obj | {"metadata": {key: value for key, value in obj["metadata"].items() if key != "ownerReferences"}}
        request = ApplyRequest(manager=MANAGER, force=self._force, dry=self._dry)
        return await apply_object(self._client, resource, body, request)

    async def _node(self, commands: NodeCommands, node: str, index: BackupIndex) -> None:
        try:
            now = await read_node(commands, node)
            files = self._lost_files(node, index, now)
            if files and not self._dry:
                await commands.run(node, ["write", *(word for file in files for word in ("--file", argument_of(file)))])
                now = await read_node(commands, node)
            for file in files:
                self._say(f"{node}: {file.name}: {'would be written' if self._dry else 'restored'}")
        except (ApiError, ApiUnreachable, ClusterError) as failure:
            self.problems += 1
            self._say(f"{node}: is not restored: {failure}")
            return
        before = {
            (entry.kind, entry.name): self._folder.content(entry)
            for kind in ("configuration", "programs", "kernel")
            for entry in index.of(kind, node)
        }
        for difference in compare.compare(before, {(file.kind, file.name): file.data for file in now}):
            for line in difference.lines():
                self._say(f"{node}: {line}")

    def _lost_files(self, node: str, index: BackupIndex, now: Iterable[NodeFile]) -> list[NodeFile]:
        """The configurations of a node that are missing now, or have another content."""
        present = {file.name: file.data for file in now if file.kind == "configuration"}
        entries = index.of("configuration", node)
        files = [NodeFile(kind="configuration", name=e.name, data=self._folder.content(e)) for e in entries]
        return [file for file in files if present.get(file.name) != file.data]


def argument_of(file: NodeFile) -> str:
    """A file as an argument of ``podwire upgrade node write``."""
    return f"{file.name}={base64.b64encode(file.data).decode()}"


def file_of(argument: str) -> tuple[str, bytes]:
    """The name and the content in an argument.

    Raises: ConfigError.
    """
    name, mark, text = argument.partition("=")
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as failure:
        raise ConfigError("--file", "", f"expected NAME=BASE64: {failure}") from failure
    if not mark or not name or Path(name).name != name:
        raise ConfigError("--file", "", f"expected NAME=BASE64 with the name of a file, got {name!r}")
    return name, data
