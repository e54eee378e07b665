"""Writes a backup: the objects of the network, then what a short pod reads on each node, then the index."""

import asyncio
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import msgspec

from podwire.kube.client import Client
from podwire.model.meta import Fact
from podwire.model.wording import count
from podwire.runtime.clock import rfc3339
from podwire.upgrade.backup import selection, transfer
from podwire.upgrade.backup.clusterread import network_objects
from podwire.upgrade.backup.folder import BackupFolder
from podwire.upgrade.backup.index import BackupEntry, BackupIndex
from podwire.upgrade.backup.transfer import NodeFile
from podwire.upgrade.nodecommands import NodeCommands, cluster_id, node_commands, nodes_ready
from podwire.upgrade.nodepods import NodeFolders

Say = Callable[[str], None]
AT_ONCE = 8
"""Nodes that are read at the same time."""


class BackupOptions(Fact, frozen=True, kw_only=True):
    """What the command line says; ``image`` empty: that of podwire's agents."""

    namespace: str = "kube-system"
    image: str = ""
    workloads: tuple[str, ...] = ()
    folders: NodeFolders = NodeFolders()
    nodes: bool = True
    """Whether nodes are read, too."""


async def read_node(commands: NodeCommands, node: str) -> tuple[NodeFile, ...]:
    """The files of a node.

    Raises: ClusterError when the pod fails, or its answer is not complete.
    """
    return transfer.parse(await commands.run(node, ["read"]), node)


def batched(names: Sequence[str], size: int) -> list[Sequence[str]]:
    """The names in groups."""
    return [names[start : start + size] for start in range(0, len(names), size)]


async def save(client: Client, to: Path, options: BackupOptions, say: Say) -> BackupIndex:
    """Writes a backup into a folder; its index.

    Raises: ConfigError, ClusterError, ApiError, ApiUnreachable; OSError, such as for a full disk. Then the folder has
    no index, and the same command continues.
    """
    folder = BackupFolder(to)
    folder.prepare()
    entries: list[BackupEntry] = []
    async for obj in network_objects(client, options.workloads):
        data = msgspec.json.format(msgspec.json.encode(selection.portable(obj), order="sorted"), indent=2) + b"\n"
        entries.append(folder.put("object", selection.title(obj), data))
    say(count(len(entries), "object"))
    if options.nodes:
        commands = await node_commands(client, options.namespace, options.image, options.folders)
        for names in batched(list(await nodes_ready(client)), AT_ONCE):
            for node, files in zip(
                names, await asyncio.gather(*(read_node(commands, name) for name in names)), strict=True
            ):
                entries += [folder.put(file.kind, file.name, file.data, node) for file in files]
                configurations = [file.name for file in files if file.kind == "configuration"]
                texts = count(len(files), "text")
                say(f"{node}: {texts}, configurations of the runtime: {', '.join(configurations) or 'none'}")
    complete = BackupIndex(
        cluster=await cluster_id(client),
        created=rfc3339(client.clock.now()),
        podwire=version("podwire"),
        entries=tuple(entries),
    )
    folder.finish(complete)
    return complete
