"""The command ``podwire why``."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import click
import msgspec

from podwire.agent import config as agent_config
from podwire.agent import kubeproxy
from podwire.agent.config import AgentConfig
from podwire.agent.why import cluster_settings, remote_nodes, service_ranges, this_node
from podwire.cli.api import client_of, request_timeout
from podwire.cli.options import name_option, recursive_option
from podwire.cli.target import local_cluster
from podwire.errors import ConfigError
from podwire.kube.client import Client
from podwire.local import credentials, inventory
from podwire.local.manifests import ManifestLines, read_manifests
from podwire.local.topology import Topology
from podwire.local.why import described_cluster, local_nodes, with_host
from podwire.proxy.kubeproxyconfig import KIND
from podwire.proxy.registry import TRACERS
from podwire.why import answer_text
from podwire.why.answer import Answer
from podwire.why.api_objects import ApiObjects
from podwire.why.cluster import ClusterAccess
from podwire.why.explain import explain
from podwire.why.kernels import NodeKernels
from podwire.why.nodes import NodeAccess
from podwire.why.question import TypedQuestion

Access = Callable[[str], NodeAccess]
_Nodes = Callable[[Client, Mapping[str, str]], Awaitable[Access]]
"""How the nodes of a cluster are known, by its API and its settings."""

_HELP = """Explain what becomes of a connection.

The answer says which node decides, which Service and which rule match, which endpoints may get the connection and why
the others may not, whether the source is masqueraded and why, what policies say of each end and which of their rules
decides, and where the connection ends. The rules are those that the nodes' kernels hold at this moment; differences
from the planned rules are shown too.

\b
FROM: shop/web-0        a pod, or the pods of a Deployment by its name
      shop/app=web      a label selector in a namespace
      node/node-1       a node itself
      external          a client outside the cluster
      host              this machine, of a local cluster
      192.0.2.7         an address
TO:   svc/shop/catalog  a Service; svc/shop/catalog:http names its port
      catalog.shop      a Service by its DNS name
      10.96.0.10:80     an address of a Service
      shop/db-0         a pod, with its port as PORT
      node/node-1       a node port, with its number as PORT
      external, host    as above
PORT: 80, 53/UDP, http, ICMP

With -f no cluster is asked: the objects come from files, and the rules are those that a node should hold.

Exit status 0 with an answer, 1 without one (the API or a kernel cannot be read), 2 when the arguments are wrong.

\b
podwire why shop/app=web svc/shop/catalog
podwire why host node/node-2 30080
podwire why shop/app=web 10.96.0.10 53/UDP -o json
podwire why -f manifests/ external svc/shop/web --node node-1
podwire why --manifests manifests/ shop/web shop/db 5432
"""


class _Request(NamedTuple):
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


@click.command(help=_HELP)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.argument("port", metavar="[PORT[/PROTO]]", default="")
@name_option
@click.option("--kubeconfig", metavar="FILE", help="A cluster that is not a local one.  [default: $KUBECONFIG]")
@request_timeout
@click.option("--config", "config_file", metavar="FILE", help="On a real node: the agent's file, or kube-proxy's.")
@click.option("--hostname-override", "hostname", metavar="NAME", default="", help="This Node's name, as the agent's.")
@click.option("-f", "--filename", "files", multiple=True, metavar="PATH", help="A file or folder; - is stdin.")
@recursive_option
@click.option(
    "--manifests", multiple=True, metavar="PATH", help="Files that policies were applied from, for line numbers."
)
@click.option("--node", metavar="NAME", default="", help="The node that gets a packet from outside.")
@click.option("--planned", is_flag=True, help="Follow the rules as they should be; no kernel is read.")
@click.option("--mode", type=click.Choice(tuple(TRACERS)), help="With --planned or -f: the data plane.")
@click.option("-4", "family", flag_value="ip", help="IPv4.")
@click.option("-6", "family", flag_value="ip6", help="IPv6.")
@click.option("-o", "--output", type=click.Choice(("text", "json")), default="text", show_default=True)
@click.pass_context
def why(  # noqa: PLR0913 - one parameter an option, as click calls it
    context: click.Context,
    source: str,
    target: str,
    port: str,
    name: str,
    kubeconfig: str | None,
    config_file: str | None,
    hostname: str,
    files: tuple[str, ...],
    recursive: bool,
    manifests: tuple[str, ...],
    node: str,
    planned: bool,
    mode: str | None,
    family: str | None,
    output: str,
) -> int:
    """Explains and prints."""
    if mode and not (planned or files):
        raise ConfigError("--mode", "", "is only for --planned and -f; without them the node's own mode is followed")
    asked = TypedQuestion(source=source, target=target, port=port, node=node, family=family or "")
    named = context.get_parameter_source("name") is not click.core.ParameterSource.DEFAULT
    topology = None if files or config_file else local_cluster(name, kubeconfig, named=named)
    request = _Request(name, kubeconfig, config_file, files, recursive, planned, mode or "", hostname, manifests)
    found = _explain(asked, request, topology)
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        click.echo("\n".join(answer_text.render(found)))
    return 0


def _explain(asked: TypedQuestion, request: _Request, topology: Topology | None) -> Answer:
    if request.files:
        from podwire.local.offline.cluster import describe

        described = describe(request.files, recursive=request.recursive)
        return asyncio.run(explain(asked, described_cluster(described, mode=request.mode)))
    written = ManifestLines(read_manifests(request.manifests, recursive=request.recursive))
    if topology is not None:
        if not request.planned:
            inventory.check_root()
        kubeconfig = str(credentials.kubeconfig_path(topology, "admin"))
        return asyncio.run(_by_api(with_host(asked, topology), request, kubeconfig, _local(topology), written))
    config = _own_config(request)
    kubeconfig = request.kubeconfig or (config.kubeconfig if config is not None else "")
    return asyncio.run(_by_api(asked, request, kubeconfig, _own(config) if config is not None else _remote, written))


def _own_config(request: _Request) -> AgentConfig | None:
    """The configuration of this node's agent, where one was given.

    Raises: ConfigError.
    """
    if request.config_file is None:
        return None
    file = Path(request.config_file)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise ConfigError("--config", str(file), str(failure)) from failure
    if f"kind: {KIND}" in text:
        config = kubeproxy.parse(text, str(file), socket.gethostname()).config
    else:
        config = agent_config.parse(text, str(file))
    name = request.hostname.strip().lower()
    return msgspec.structs.replace(config, node_name=name) if name else config


async def _by_api(
    asked: TypedQuestion, request: _Request, kubeconfig: str, nodes: _Nodes, written: ManifestLines
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
            lines=written.line,
            differences=lambda world: written.different((*world.policies, *world.cluster_policies)),
        )
        return await explain(asked, cluster)
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
