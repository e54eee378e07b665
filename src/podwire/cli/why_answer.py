"""Gets the answer of ``podwire why``: from files, from a local cluster, on a node, or by an API server."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from podwire.agent import config as agent_config
from podwire.agent.config import AgentConfig
from podwire.agent.why import cluster_settings, remote_nodes, service_ranges, this_node
from podwire.cli.api import client_of
from podwire.errors import ConfigError
from podwire.kube.client import Client
from podwire.local import credentials, inventory
from podwire.local.manifests import ManifestLines, read_manifests
from podwire.local.topology import Topology
from podwire.local.why import described_cluster, local_nodes, with_host
from podwire.why.answer import Answer
from podwire.why.api_objects import ApiObjects
from podwire.why.cluster import ClusterAccess
from podwire.why.explain import explain
from podwire.why.kernels import NodeKernels
from podwire.why.nodes import NodeAccess
from podwire.why.question import TypedQuestion

Access = Callable[[str], NodeAccess]
_Nodes = Callable[[Client, Mapping[str, str]], Awaitable[Access]]
"""Gives access to the nodes of a cluster, from its API and its settings."""


class WhyRequest(NamedTuple):
    """The options that choose the cluster and the nodes."""

    name: str
    kubeconfig: str | None
    config_file: str | None
    files: tuple[str, ...]
    recursive: bool
    planned: bool
    mode: str
    hostname: str
    manifests: tuple[str, ...]


def answer(question: TypedQuestion, request: WhyRequest, topology: Topology | None) -> Answer:
    """The answer to a question; ``topology`` is None for files, for a node, and for a remote cluster.

    Raises: ConfigError, ApiError, ApiUnreachable, ClusterError.
    """
    if request.files:
        from podwire.local.offline.cluster import describe

        offline = describe(request.files, recursive=request.recursive)
        return asyncio.run(explain(question, described_cluster(offline, mode=request.mode)))
    manifests = ManifestLines(read_manifests(request.manifests, recursive=request.recursive))
    if topology is not None:
        if not request.planned:
            inventory.check_root()
        kubeconfig = str(credentials.kubeconfig_path(topology, "admin"))
        return asyncio.run(_by_api(with_host(question, topology), request, kubeconfig, _local(topology), manifests))
    config = _own_config(request)
    kubeconfig = request.kubeconfig or (config.kubeconfig if config is not None else "")
    return asyncio.run(
        _by_api(question, request, kubeconfig, _own(config) if config is not None else _remote, manifests)
    )


def _own_config(request: WhyRequest) -> AgentConfig | None:
    """The configuration of this node's agent, None without ``--config``.

    Raises: ConfigError.
    """
    if request.config_file is None:
        return None
    file = Path(request.config_file)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise ConfigError("--config", str(file), str(failure)) from failure
    from podwire.agent import kubeproxy
    from podwire.proxy.kubeproxyconfig import KIND

    if f"kind: {KIND}" in text:
        config = kubeproxy.parse(text, str(file), socket.gethostname()).config
    else:
        config = agent_config.parse(text, str(file))
    name = request.hostname.strip().lower()
    return msgspec.structs.replace(config, node_name=name) if name else config


async def _by_api(
    question: TypedQuestion, request: WhyRequest, kubeconfig: str, nodes: _Nodes, manifests: ManifestLines
) -> Answer:
    """The answer with the objects of an API server."""
    client = client_of(kubeconfig or None)
    try:
        if nodes is _remote and not request.planned:
            raise ConfigError(
                "podwire why",
                "",
                "the rules of this cluster's nodes cannot be read from here: run this on the node that decides with "
                "--config FILE (the agent's configuration), or use --planned",
            )
        access = await nodes(client, await cluster_settings(client))
        cluster = ClusterAccess(
            objects=ApiObjects(client),
            nodes=NodeKernels(access, client.clock, planned=request.planned, mode=request.mode),
            lines=manifests.line,
            differences=lambda world: manifests.different((*world.policies, *world.cluster_policies)),
        )
        return await explain(question, cluster)
    finally:
        await client.close()


def _local(topology: Topology) -> _Nodes:
    async def nodes(_client: Client, settings: Mapping[str, str]) -> Access:
        return local_nodes(topology, settings)

    return nodes


def _own(config: AgentConfig) -> _Nodes:
    async def nodes(client: Client, settings: Mapping[str, str]) -> Access:
        ranges = config.service_cidrs or await service_ranges(client)
        return this_node(msgspec.structs.replace(config, service_cidrs=ranges), settings)

    return nodes


async def _remote(client: Client, settings: Mapping[str, str]) -> Access:
    return remote_nodes(await ApiObjects(client).nodes(), await service_ranges(client), settings)
