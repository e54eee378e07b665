"""The command ``podwire why``."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import click
import msgspec

from podwire.agent import config as agent_config
from podwire.agent import kubeproxy
from podwire.agent.config import AgentConfig
from podwire.cli.api import client_of, request_timeout
from podwire.cli.cluster import name_option, recursive_option
from podwire.cli.guards import Guards
from podwire.cli.sites import Known, Nodes, remote
from podwire.cli.target import local_cluster
from podwire.cluster.world import World
from podwire.errors import ApiError, ClusterError, ConfigError, NotFound
from podwire.kube.client import Client
from podwire.kube.resources import CONFIGMAPS, SERVICECIDRS
from podwire.local import credentials, inventory
from podwire.local.layout import Layout
from podwire.local.manifests import Written, read_manifests
from podwire.proxy.registry import TRACERS
from podwire.why import answer_text
from podwire.why.answer import Answer
from podwire.why.objects import Server
from podwire.why.policies.answering import with_policies
from podwire.why.policies.cluster import world_of
from podwire.why.policies.explain import Lines
from podwire.why.question import Asked, pose
from podwire.why.services.answering import answer

T = TypeVar("T")

_SETTINGS = "kube-system/podwire-config"
_AGAIN_S = 0.3
"""How long a difference must last: objects that change this moment are in the kernel some milliseconds later."""
_HELP = """Explain what becomes of a connection.

Says which node decides, which Service and which rule match, which endpoints may get the connection and why the others
may not, whether the source is masqueraded and why, what policies say of each end and which of their rules decides, and
where the connection ends. The rules are those that the nodes' kernels hold at this moment; where they are not what they
should be, that is shown too.

\b
FROM: shop/web-0        a pod, or the pods of a Deployment by its name
      shop/app=web      a label selector in a namespace
      node/node-1       a node itself
      external          anybody outside
      host              this machine, of a local cluster
      192.0.2.7         an address
TO:   svc/shop/catalog  a Service; svc/shop/catalog:http names its port
      catalog.shop      a Service by its DNS name
      10.96.0.10:80     an address of a Service
      shop/db-0         a pod, with its port as PORT
      node/node-1       a node port, with its number as PORT
      external, host    as above
PORT: 80, 53/UDP, http, ICMP

With -f nothing is asked of a cluster: the objects come from files, the rules are those that a node should hold.

Exit status 0 when it is explained, 1 when it cannot be told (no API, no such kernel), 2 when the words are wrong.

\b
podwire why shop/app=web svc/shop/catalog
podwire why host node/node-2 30080
podwire why shop/app=web 10.96.0.10 53/UDP -o json
podwire why -f manifests/ external svc/shop/web --node node-1
podwire why --manifests manifests/ shop/web shop/db 5432
"""


class _Request(NamedTuple):
    """What was typed beside the question."""

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
        raise ConfigError("--mode", "", "is for --planned and -f; otherwise the node's own is in force")
    asked = Asked(source=source, target=target, port=port, node=node, family=family or "")
    named = context.get_parameter_source("name") is not click.core.ParameterSource.DEFAULT
    layout = None if files or config_file else local_cluster(name, kubeconfig, named=named)
    request = _Request(name, kubeconfig, config_file, files, recursive, planned, mode or "", hostname, manifests)
    found = _explain(asked, request, layout)
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        click.echo("\n".join(answer_text.render(found)))
    return 0


def _explain(asked: Asked, request: _Request, layout: Layout | None) -> Answer:
    if request.files:
        return asyncio.run(_by_files(asked, request))
    if layout is not None:
        if not request.planned:
            inventory.check_root()
        return asyncio.run(_with_client(str(credentials.kubeconfig_path(layout, "admin")),
                                        lambda client: _by_local(asked, request, layout, client)))  # fmt: skip
    config = _own_config(request)
    kubeconfig = request.kubeconfig or (config.kubeconfig if config is not None else "")
    return asyncio.run(_with_client(kubeconfig or None, lambda client: _by_api(asked, request, client, config)))


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
    if f"kind: {kubeproxy.KIND}" in text:
        config = kubeproxy.parse(text, str(file), socket.gethostname()).config
    else:
        config = agent_config.parse(text, str(file))
    name = request.hostname.strip().lower()
    return msgspec.structs.replace(config, node_name=name) if name else config


async def _with_client(kubeconfig: str | None, ask: Callable[[Client], Awaitable[Answer]]) -> Answer:
    client = client_of(kubeconfig)
    try:
        return await ask(client)
    finally:
        await client.close()


async def _by_local(asked: Asked, request: _Request, layout: Layout, client: Client) -> Answer:
    """In a local cluster."""
    host = str(layout.host_address), str(layout.host_address6)
    if asked.source == "host":
        asked = msgspec.structs.replace(asked, source="external", outside=host)
    if asked.target.partition(":")[0] == "host":
        asked = msgspec.structs.replace(asked, target=asked.target.replace("host", "external", 1), outside=host)

    def known(name: str) -> Known:
        file = Path(layout.node_run(name)) / "agent.yaml"
        if not file.exists():
            raise ClusterError(f"node {name} is none of local cluster {layout.name!r}")
        return Known(config=agent_config.load(file), netns=Path(layout.netns(name)))

    return await _ask(asked, client, known, request)


async def _by_api(asked: Asked, request: _Request, client: Client, config: AgentConfig | None) -> Answer:
    """In a cluster that is not a local one: on a node of it, or from anywhere by plan."""
    if config is not None:
        ranges = config.service_cidrs or await _service_cidrs(client)
        return await _ask(asked, client, _own(msgspec.structs.replace(config, service_cidrs=ranges)), request)
    if not request.planned:
        raise ConfigError(
            "podwire why",
            "",
            "the rules of this cluster's nodes cannot be read from here: run this on the node that decides with "
            "--config FILE (the agent's configuration), or take --planned",
        )
    nodes = await Server(client).nodes()
    return await _ask(asked, client, remote(nodes, await _service_cidrs(client)), request)


def _own(config: AgentConfig) -> Callable[[str], Known]:
    def known(name: str) -> Known:
        if name != config.node_name:
            problem = f"node {name} decides, and this is {config.node_name}; run this there, or take --planned"
            raise ClusterError(problem)
        return Known(config=config)

    return known


async def _service_cidrs(client: Client) -> tuple[str, ...]:
    try:
        found = await client.list(SERVICECIDRS)
    except ApiError:
        return ()
    return tuple(cidr for one in found.items for cidr in one.get("spec", {}).get("cidrs", ()))


async def _ask(asked: Asked, client: Client, known: Callable[[str], Known], request: _Request) -> Answer:
    objects = Server(client)
    written = Written(read_manifests(request.manifests, recursive=request.recursive))
    settings = await _settings(client)
    question = await pose(asked, objects)

    async def found() -> Answer:
        nodes = Nodes(known, settings, planned=request.planned, mode=request.mode)
        answered = await answer(question, objects, nodes)
        world = await world_of(client, answered)
        told = _with_policies(answered, world, nodes, written.line)
        other = written.other((*world.policies, *world.cluster_policies))
        return msgspec.structs.replace(told, notes=(*told.notes, *other))

    once = await found()
    if not _drifted(once):
        return once
    await client.clock.sleep(_AGAIN_S)
    return await found()


def _drifted(found: Answer) -> bool:
    """Whether rules in force are not those that should be."""
    nodes = (node for one in found.policies for node in one.nodes)
    return any(hop.drift for hop in found.hops) or any(node.drifted for node in nodes)


def _with_policies(answered: Answer, world: World, nodes: Nodes, lines: Lines) -> Answer:
    guards = Guards(nodes, world)
    found = with_policies(answered, world, guards, lines)
    return msgspec.structs.replace(found, notes=tuple(dict.fromkeys((*found.notes, *guards.notes))))


async def _settings(client: Client) -> Mapping[str, str]:
    """The cluster's settings."""
    namespace, _, name = _SETTINGS.partition("/")
    try:
        found = await client.get(CONFIGMAPS, name, namespace)
    except NotFound:
        return {}
    return dict(found.get("data") or {})


async def _by_files(asked: Asked, request: _Request) -> Answer:
    """Without a cluster."""
    from podwire.local.offline.cluster import describe

    described = describe(request.files, recursive=request.recursive)
    sites = Nodes(lambda node: Known(config=described.config(node), readable=False), planned=True, mode=request.mode)
    question = await pose(asked, described.objects)
    answered = await answer(question, described.objects, sites)
    found = _with_policies(answered, described.world, sites, described.line)
    return msgspec.structs.replace(found, notes=(*found.notes, *described.notes))
