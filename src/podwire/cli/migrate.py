"""The commands ``podwire migrate``."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from podwire.cli.lazy import LazyGroup
from podwire.cli.options import kubeconfig_option, output_option

if TYPE_CHECKING:
    from podwire.agent.config import AgentConfig
    from podwire.install.migration.run import MigrationOptions

COMMANDS: Mapping[str, tuple[str, str]] = {
    "plan": ("podwire.cli.migrate:plan", "Show what a migration would do; checks every node, changes nothing."),
    "apply": ("podwire.cli.migrate:apply", "Migrate the nodes to podwire, one after the other."),
    "back": ("podwire.cli.migrate:back", "Return the nodes to the old network, one after the other."),
    "status": ("podwire.cli.migrate:status", "Show which steps are done on each node."),
    "node": ("podwire.cli.migrate:node", "Run one step on this node (used by apply and back)."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def migrate() -> None:
    """Change a cluster from kube-proxy, Flannel, or bridge and host-local to podwire, node by node, and back.

    Pods keep running and keep their addresses. Install podwire's chart first, with agents that wait for the label
    `podwire.io/migrated`; docs/migrate.md shows how. A run that was interrupted continues with the same command.
    """


_nodes_option = click.option("--node", "nodes", metavar="NAME", multiple=True, help="Only these nodes, in this order.")
_daemonsets_option = click.option(
    "--daemonset", "daemonsets", metavar="NAMESPACE/NAME", multiple=True,
    help="A further DaemonSet of the old network; kube-proxy and Flannel are known by their names.",
)  # fmt: skip
_namespace_option = click.option(
    "-n", "--namespace", default="kube-system", show_default=True, metavar="NAME", help="Namespace of podwire."
)
_flows_option = click.option("--no-flows", is_flag=True, help="Run without the pods that send numbered messages.")


@click.command()
@kubeconfig_option
@_namespace_option
@_nodes_option
@_daemonsets_option
def plan(kubeconfig: str | None, namespace: str, nodes: tuple[str, ...], daemonsets: tuple[str, ...]) -> int:
    """Show what a migration would do.

    Each node is checked by a pod that changes nothing. The exit status is 1 when a node has a fault.
    """
    return _run("plan", kubeconfig, _options(namespace, nodes, daemonsets, no_flows=True))


@click.command()
@kubeconfig_option
@_namespace_option
@_nodes_option
@_daemonsets_option
@_flows_option
def apply(
    kubeconfig: str | None, namespace: str, nodes: tuple[str, ...], daemonsets: tuple[str, ...], no_flows: bool
) -> int:
    """Migrate the nodes to podwire, one after the other.

    The command stops at the first node that fails a step; nodes that are done stay on podwire. Run it again to
    continue, or run `podwire migrate back`.
    """
    return _run("apply", kubeconfig, _options(namespace, nodes, daemonsets, no_flows=no_flows))


@click.command()
@kubeconfig_option
@_namespace_option
@_nodes_option
@_daemonsets_option
@_flows_option
def back(
    kubeconfig: str | None, namespace: str, nodes: tuple[str, ...], daemonsets: tuple[str, ...], no_flows: bool
) -> int:
    """Return the nodes to the old network, one after the other; also in the middle of a migration."""
    return _run("back", kubeconfig, _options(namespace, nodes, daemonsets, no_flows=no_flows))


@click.command()
@kubeconfig_option
@_namespace_option
@output_option
def status(kubeconfig: str | None, namespace: str, output: str) -> None:
    """Show which steps are done on each node."""
    import asyncio

    from podwire.cli.api import client_of
    from podwire.cli.output import print_json
    from podwire.install.migration import run

    states = asyncio.run(run.status(client_of(kubeconfig), namespace))
    if output == "json":
        print_json(states)
        return
    for name, state in states.items():
        click.echo(f"{name}: {state}")


@click.command()
@click.argument("step")
@click.option("--config", "config_file", metavar="FILE", required=True, help="Configuration of the node's agent.")
@click.option("--before", metavar="JSON", default="{}", help="The facts of the node that the step `check` printed.")
@click.option("--target", "targets", metavar="ADDRESS", multiple=True, help="An address that must answer (verify).")
def node(step: str, config_file: str, before: str, targets: tuple[str, ...]) -> int:
    """Run one step on this node."""
    import msgspec

    from podwire.agent.config import load
    from podwire.errors import ConfigError
    from podwire.install.migration.record import NodeBefore

    try:
        facts = msgspec.json.decode(before, type=NodeBefore)
    except msgspec.DecodeError as failure:
        raise ConfigError("--before", "", str(failure)) from failure
    config = load(Path(config_file))
    if step == "check":
        return _check(config)
    if step.startswith("verify"):
        from podwire.flows.sending import unreachable

        problems = unreachable(targets, 60.0)
        for problem in problems:
            click.echo(problem)
        return 1 if problems else 0
    _change(step, config, facts)
    return 0


def _check(config: "AgentConfig") -> int:
    import msgspec

    from podwire.install.migration import nodecheck
    from podwire.kernel.features import Features

    facts, findings = nodecheck.check(config, Features())
    for finding in findings:
        click.echo(str(finding))
    click.echo(msgspec.json.encode(facts).decode())
    return 1 if any(finding.level == "fault" for finding in findings) else 0


def _change(step: str, config: "AgentConfig", facts: "object") -> None:
    from time import sleep

    from podwire.errors import ConfigError
    from podwire.install.migration import handback, takeover
    from podwire.install.migration.record import NodeBefore

    assert isinstance(facts, NodeBefore)
    steps: Mapping[str, Callable[[], None]] = {
        "network": lambda: takeover.take_network(config, click.echo, sleep),
        "services": lambda: takeover.take_services(config, click.echo, sleep),
        "network-back": lambda: handback.return_network(config, facts, click.echo, sleep),
        "services-back": lambda: handback.return_services(config, facts, click.echo, sleep),
    }
    if step not in steps:
        raise ConfigError(
            "STEP", "", f"{step!r} is not a step on nodes; the steps are check, verify, {', '.join(steps)}"
        )
    steps[step]()


def _options(
    namespace: str, nodes: tuple[str, ...], daemonsets: tuple[str, ...], *, no_flows: bool
) -> "MigrationOptions":
    from podwire.install.migration.run import MigrationOptions

    return MigrationOptions(namespace=namespace, nodes=nodes, daemonsets=daemonsets, flows=not no_flows)


def _run(action: str, kubeconfig: str | None, options: "MigrationOptions") -> int:
    import asyncio

    from podwire.cli.api import client_of
    from podwire.install.migration import run

    return asyncio.run(run.run(action, client_of(kubeconfig), options, click.echo))
