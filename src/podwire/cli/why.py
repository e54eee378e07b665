"""The command ``podwire why``."""

from typing import TYPE_CHECKING, TypeVar

import click

from podwire.cli.completion import node_names
from podwire.cli.options import kubeconfig_option, name_is_typed, name_option, output_option, recursive_option
from podwire.cli.output import print_json
from podwire.cli.request_timeout import request_timeout
from podwire.cli.target import local_cluster
from podwire.errors import ConfigError
from podwire.runtime.memory import importing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from podwire.kube.client import Client
    from podwire.local.topology import Topology

_Answer = TypeVar("_Answer")
MODES = ("nftables", "iptables", "ipvs", "userspace")
"""The data planes with a tracer: the names of :data:`podwire.proxy.registry.TRACERS`."""

_HELP = """Explain whether a connection works, and why.

The answer says whether the connection is forwarded, refused or dropped, and which Service, endpoint, policy, route and
rule decide. It follows the rules that the kernels of the nodes have now, and shows differences from the planned rules.
The command sends no packets and changes nothing.

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

`podwire why dns NAME [TYPE] --from POD` explains how a pod resolves a DNS name: each name of its search path, the
object with that name, and the servers for names outside the cluster.

`podwire why url URL [METHOD]` explains which Ingress or Gateway serves a URL: listener, certificate, host, route,
weights and endpoints, or why none does.

With -f the command reads no cluster: objects come from files, and the rules are planned from them.

The exit status is 0 with an answer, 1 without an answer (the API or a kernel cannot be read), and 2 when the arguments
are wrong.

\b
podwire why shop/app=web svc/shop/catalog
podwire why host node/node-2 30080
podwire why shop/app=web 10.96.0.10 53/UDP -o json
podwire why -f manifests/ external svc/shop/web --node node-1
podwire why --manifests manifests/ shop/web shop/db 5432
podwire why dns catalog --from shop/app=web
podwire why dns example.com AAAA
podwire why url https://web.example/login POST
"""


@click.command(help=_HELP)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.argument("port", metavar="[PORT[/PROTO]]", default="")
@name_option
@kubeconfig_option
@request_timeout
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    help="On a real node: the configuration file of the agent, or of kube-proxy.",
)
@click.option(
    "--hostname-override",
    "hostname",
    metavar="NAME",
    default="",
    help="With --config: the name of this Node, as for the agent.",
)
@click.option("-f", "--filename", "files", multiple=True, metavar="PATH", help="Manifest file or folder; - is stdin.")
@recursive_option
@click.option(
    "--manifests", multiple=True, metavar="PATH", help="Files from which policies were applied, for line numbers."
)
@click.option(
    "--node", metavar="NAME", default="", shell_complete=node_names, help="The node that gets a packet from outside."
)
@click.option("--planned", is_flag=True, help="Follow the planned rules; read no kernel.")
@click.option("--mode", type=click.Choice(MODES), help="With --planned or -f: the data plane of Services.")
@click.option("--from", "asker", metavar="POD", default="", help="With dns: the pod that asks.")
@click.option("-4", "family", flag_value="ip", help="IPv4.")
@click.option("-6", "family", flag_value="ip6", help="IPv6.")
@output_option
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
    asker: str,
    family: str | None,
    output: str,
) -> int:
    """Prints the answer."""
    if mode and not (planned or files):
        raise ConfigError("--mode", "", "works only with --planned or -f; otherwise the node has its own mode")
    named = name_is_typed(context)
    topology = None if files or config_file else local_cluster(name, kubeconfig, named=named)
    if source == "dns":
        if files or config_file:
            raise ConfigError("podwire why dns", "", "reads a cluster, so it does not work with -f or --config")
        return _explain_dns((target, port or "A", asker), topology, kubeconfig, output)
    if source == "url":
        if files or config_file:
            raise ConfigError("podwire why url", "", "reads a cluster, so it does not work with -f or --config")
        return _explain_url((target, port or "GET"), topology, kubeconfig, output)
    with importing():
        from podwire.cli.why_answer import WhyRequest, answer
        from podwire.why import answer_text
        from podwire.why.question import TypedQuestion

    question = TypedQuestion(source=source, target=target, port=port, node=node, family=family or "")
    request = WhyRequest(name, kubeconfig, config_file, files, recursive, planned, mode or "", hostname, manifests)
    explained = answer(question, request, topology)
    _print(explained, answer_text.render(explained), output)
    return 0


def _print(explained: object, lines: "Iterable[str]", output: str) -> None:
    if output == "json":
        print_json(explained)
    else:
        click.echo("\n".join(lines))


def _explain_dns(asked: tuple[str, str, str], topology: "Topology | None", kubeconfig: str | None, output: str) -> int:
    """Prints what happens to a DNS name; ``asked`` are the name, the type of records, and the pod that asks."""
    from podwire.why.dns import text
    from podwire.why.dns.question import DnsQuestion, ask

    question = DnsQuestion(*asked)
    answer = _asked(lambda client: ask(question, client), topology, kubeconfig)
    _print(answer, text.render(answer), output)
    return 0


def _explain_url(asked: tuple[str, str], topology: "Topology | None", kubeconfig: str | None, output: str) -> int:
    """Prints which route a URL takes; ``asked`` are the URL and the method."""
    from podwire.why.gateway import text
    from podwire.why.gateway.explain import UrlQuestion
    from podwire.why.gateway.question import ask_url

    question = UrlQuestion(*asked)
    answer = _asked(lambda client: ask_url(question, client), topology, kubeconfig)
    _print(answer, text.render(answer), output)
    return 0


def _asked(
    question: "Callable[[Client], Awaitable[_Answer]]", topology: "Topology | None", kubeconfig: str | None
) -> _Answer:
    """What a question to the API server of a cluster returns."""
    import asyncio

    from podwire.cli.api import client_of
    from podwire.local import credentials

    file = str(credentials.kubeconfig_path(topology, "admin")) if topology is not None else kubeconfig

    async def answer() -> _Answer:
        client = client_of(file)
        try:
            return await question(client)
        finally:
            await client.close()

    return asyncio.run(answer())
