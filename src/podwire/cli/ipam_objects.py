"""Reads the pools, blocks, nodes and pods of a cluster, and the addresses that agents hold, for ``podwire ipam``."""

import asyncio

import click
import msgspec

from podwire.cli.api import client_of
from podwire.cli.policy_agents import local_agents
from podwire.cluster.blocks import Block, PoolReader, read_block
from podwire.cluster.ipamreport import AgentLine, ClusterAddresses, releasable
from podwire.errors import ApiError, ApiUnreachable, ClusterError, ConfigError, Conflict, ProtocolError
from podwire.http.fetch import fetch
from podwire.kube.client import Client
from podwire.kube.optional import list_if_served
from podwire.kube.resources import IPAMBLOCKS, IPPOOLS, NODES, PODS
from podwire.local import credentials
from podwire.local.topology import Topology


def read_cluster(topology: Topology | None, kubeconfig: str | None) -> ClusterAddresses:
    """All objects, and the lines of the agents of a local cluster; agents that do not answer are named.

    Raises: ClusterError, ConfigError.
    """
    lines = _agents(topology) if topology is not None else {}
    try:
        return asyncio.run(_read(_client(topology, kubeconfig), lines))
    except (ApiError, ApiUnreachable, ProtocolError) as failure:
        raise ClusterError(f"cannot read the cluster: {failure}") from failure


def release(topology: Topology | None, kubeconfig: str | None, text: str) -> Block:
    """Deletes the block of a range that nobody uses, as the API has it now.

    Raises: ConfigError when the block is in use; ClusterError.
    """

    async def run() -> Block:
        client = _client(topology, kubeconfig)
        try:
            block = releasable(await _objects(client, {}), text)
            await client.delete_unchanged(IPAMBLOCKS, block.meta)
        finally:
            await client.close()
        return block

    try:
        return asyncio.run(run())
    except ValueError as problem:
        raise ConfigError("--release", text, str(problem)) from problem
    except Conflict as failure:
        raise ClusterError(f"the block of {text} has just changed; nothing was deleted") from failure
    except (ApiError, ApiUnreachable, ProtocolError) as failure:
        raise ClusterError(f"cannot delete the block of {text}: {failure}") from failure


def _client(topology: Topology | None, kubeconfig: str | None) -> Client:
    return client_of(str(credentials.kubeconfig_path(topology, "admin")) if topology is not None else kubeconfig)


async def _read(client: Client, lines: dict[str, list[AgentLine]]) -> ClusterAddresses:
    try:
        return await _objects(client, lines)
    finally:
        await client.close()


async def _objects(client: Client, lines: dict[str, list[AgentLine]]) -> ClusterAddresses:
    reader = PoolReader()
    pools = reader.read(await list_if_served(client, IPPOOLS))
    blocks = []
    for obj in await list_if_served(client, IPAMBLOCKS):
        try:
            blocks.append(read_block(obj))
        except ConfigError as problem:
            click.echo(f"podwire: left out: {problem}", err=True)
    for text in reader.problems.values():
        click.echo(f"podwire: left out: {text}", err=True)
    nodes, pods = (await client.list(NODES)).items, (await client.list(PODS)).items
    return ClusterAddresses(pools=pools, blocks=blocks, nodes=tuple(nodes), pods=tuple(pods), agents=lines)


def _agents(topology: Topology) -> dict[str, list[AgentLine]]:
    """The lines of each agent of a local cluster that answers."""
    lines: dict[str, list[AgentLine]] = {}
    for node, path in local_agents(topology).sockets.items():
        try:
            lines[node] = [msgspec.json.decode(line, type=AgentLine) for line in fetch(path, "/ipam")]
        except (OSError, ProtocolError, msgspec.MsgspecError) as failure:
            click.echo(f"podwire: the agent of {node} does not answer ({failure}); its addresses are missing", err=True)
    return lines
