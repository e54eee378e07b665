"""The commands that run one component in the foreground, as containers and service files do.

Each takes a configuration file, uses the API server that its kubeconfig names, logs to standard error, and ends
in order on SIGTERM or SIGINT. What a component runs is chosen in its configuration (``parts``), so that, for example,
the Service proxy alone can run beside another CNI plugin.
"""

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from podwire.cli.lazy import LazyGroup
from podwire.errors import ConfigError
from podwire.observe import log
from podwire.runtime.clock import SystemClock
from podwire.runtime.foreground import run_until_signal

if TYPE_CHECKING:
    from podwire.agent.config import AgentConfig
    from podwire.gateway.config import GatewayConfig

_config = click.option("--config", "config_file", metavar="FILE", required=True, help="Configuration (YAML).")
_kubeconfig = click.option(
    "--kubeconfig", metavar="FILE", help="Kubeconfig of the cluster; overrides the configuration."
)


@click.command()
@click.option("--config", "config_file", metavar="FILE", help="Configuration (YAML).")
@click.option(
    "--kube-proxy-config", metavar="FILE", help="Instead of --config: configuration of kube-proxy, to replace it."
)
@click.option("--hostname-override", metavar="NAME", help="Name of this Node; overrides the configuration.")
@_kubeconfig
def agent(
    config_file: str | None, kube_proxy_config: str | None, hostname_override: str | None, kubeconfig: str | None
) -> None:
    """Run the agent of a node: pod addresses and devices (CNI), routing between nodes, Services, NetworkPolicy.

    `parts` in the configuration chooses what runs, for example [cni, routing, policy, proxy].
    """
    from podwire.agent import config, daemon

    if bool(config_file) == bool(kube_proxy_config):
        raise click.UsageError("expected either --config or --kube-proxy-config")
    settings = config.load(Path(config_file)) if config_file else _in_place_of_kube_proxy(str(kube_proxy_config))
    name = hostname_override or settings.node_name or os.environ.get("NODE_NAME") or socket.gethostname()
    settings = msgspec.structs.replace(settings, node_name=name.strip().lower())
    if kubeconfig:
        settings = msgspec.structs.replace(settings, kubeconfig=kubeconfig)
    log.configure(settings.log_level)
    run_until_signal(lambda: daemon.run(settings, SystemClock()))


def _in_place_of_kube_proxy(file: str) -> "AgentConfig":
    from podwire.agent import kubeproxy

    try:
        text = Path(file).read_text(encoding="utf-8")
    except OSError as problem:
        raise ConfigError(file, "", problem.strerror or str(problem)) from problem
    replaced = kubeproxy.parse(text, file, socket.gethostname())
    for field in replaced.without_meaning:
        click.echo(f"podwire: {file}: ignored {field}: podwire does not use it", err=True)
    return replaced.config


@click.command()
@_config
@_kubeconfig
def controller(config_file: str, kubeconfig: str | None) -> None:
    """Run the cluster's controllers: node CIDRs, EndpointSlices, Services.

    A local cluster also needs the scheduler and the workload controllers; `parts` in the configuration chooses.
    """
    from podwire.local import controllers

    controllers.run_file(config_file, kubeconfig)


@click.group(invoke_without_command=True)
@click.option("--config", "config_file", metavar="FILE", help="Configuration (YAML); all settings have defaults.")
@click.option("--corefile", metavar="FILE", help="Instead of --config: the Corefile of CoreDNS, to replace it.")
@click.option(
    "--node-local",
    "service_addresses",
    multiple=True,
    metavar="ADDRESS",
    help="Be the server of this node at an address of the DNS Service, in front of the cluster's replicas.",
)
@_kubeconfig
@click.pass_context
def dns(
    context: click.Context,
    config_file: str | None,
    corefile: str | None,
    service_addresses: tuple[str, ...],
    kubeconfig: str | None,
) -> None:
    """Run cluster DNS: answers for Services and pods from memory, forwards the rest."""
    if context.invoked_subcommand is not None:
        return
    from podwire.dns import config, server
    from podwire.dns.corefile.load import load_corefile

    if config_file and corefile:
        raise click.UsageError("expected either --config or --corefile")

    def load() -> config.DnsConfig:
        settings = load_corefile(corefile) if corefile else config.DnsConfig()
        if config_file:
            settings = config.load_config(config_file)
        if service_addresses:
            config.check_service_addresses(service_addresses, "podwire dns", "--node-local")
            settings = msgspec.structs.replace(settings, listen=service_addresses, node_local=True)
        return msgspec.structs.replace(settings, kubeconfig=kubeconfig) if kubeconfig else settings

    settings = load()
    log.configure()
    server.serve(settings, SystemClock(), load=load if corefile else None)


@dns.command()
@click.argument("corefile", metavar="COREFILE")
def check(corefile: str) -> None:
    """Check a Corefile: list each plugin and option that podwire does not support, with its line."""
    from podwire.dns.corefile.load import load_corefile

    settings = load_corefile(corefile)
    routes = {".": settings.forward, **settings.stub_domains}
    encrypted = f", over TLS on port {settings.tls_port}" if settings.tls_port else ""
    click.echo(f"{corefile}: podwire answers {settings.domain} on port {settings.port}{encrypted}")
    for zone, forward in routes.items():
        if forward.upstreams:
            click.echo(f"{corefile}: {zone} is forwarded to {', '.join(forward.upstreams)}")


_GATEWAY_COMMANDS: Mapping[str, tuple[str, str]] = {
    "engine": ("podwire.cli.component:engine", "Run Envoy, the engine of the gateway."),
    "drain": ("podwire.cli.component:drain", "Close the connections of the engine before it ends (preStop hook)."),
    "migrate": ("podwire.cli.gateway_migrate:migrate", "Translate Ingresses into objects of Gateway API."),
}


@click.group(cls=LazyGroup, table=_GATEWAY_COMMANDS, invoke_without_command=True)
@click.option("--config", "config_file", metavar="FILE", help="Configuration (YAML); all settings have defaults.")
@_kubeconfig
@click.pass_context
def gateway(context: click.Context, config_file: str | None, kubeconfig: str | None) -> None:
    """Run the gateway: follow Ingresses and Gateway API, and configure Envoy, which serves them."""
    from podwire.gateway.config import GatewayConfig, load_gateway_config

    settings = load_gateway_config(config_file) if config_file else GatewayConfig()
    settings = msgspec.structs.replace(settings, kubeconfig=kubeconfig) if kubeconfig else settings
    context.obj = settings
    if context.invoked_subcommand is not None:
        return
    from podwire.runtime.keeper import keep_worker

    log.configure()
    keep_worker()
    from podwire.gateway import daemon

    run_until_signal(lambda: daemon.run(settings, SystemClock()))


@click.command()
@click.pass_obj
def engine(settings: "GatewayConfig") -> None:
    """Run Envoy, the engine of the gateway. It gets its configuration from the gateway with the same settings."""
    from podwire.gateway.envoy.engine import become_engine

    become_engine(settings)


@click.command()
@click.option("--seconds", type=float, default=30.0, show_default=True, help="How long to wait at most.")
@click.pass_obj
def drain(settings: "GatewayConfig", seconds: float) -> None:
    """Ask the clients of the engine to close their connections, and wait until they have done so."""
    import time

    from podwire.gateway.envoy.drain import drain as drain_engine
    from podwire.gateway.envoy.engine import ADMIN_SOCKET

    socket_file = Path(settings.run_dir) / ADMIN_SOCKET
    try:
        remaining = drain_engine(socket_file, seconds, time.sleep)
    except OSError as problem:
        raise ConfigError(str(socket_file), "", f"the engine does not answer: {problem}") from problem
    click.echo(f"connections left: {remaining}")


@click.command()
@_config
def apiserver(config_file: str) -> None:
    """Run the embedded Kubernetes API server: one process, state in one SQLite file."""
    from podwire.embedded.apiserver import server, settings

    loaded = settings.load(Path(config_file))
    log.configure()
    run_until_signal(lambda: server.run(loaded))


@click.command()
@_config
@_kubeconfig
def kubelet(config_file: str, kubeconfig: str | None) -> None:
    """Run the local kubelet: pods as real processes in namespaces of this machine."""
    from podwire.embedded.kubelet import daemon

    daemon.main(config_file, kubeconfig)
