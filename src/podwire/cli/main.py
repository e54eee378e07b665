"""The command ``podwire``: a table of commands, loaded when they are called, and the exit statuses.

Exit status: 0 done; 1 a check failed (a probe, a cluster that does not come up, `state --diff` that finds a
difference); 2 the input is wrong, or `state --diff` cannot compare; 130 interrupted. Errors are one line on standard
error, without a traceback. A reader that closes the output early (`| head`) ends the command without an error.
"""

import gc
import os
import select
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import click

from podwire.cli.lazy import LazyGroup
from podwire.errors import ConfigError, ConfigErrors, PodwireError

COMMANDS: Mapping[str, tuple[str, str]] = {
    "up": ("podwire.cli.up:up", "Bring up a local cluster, or change a running one."),
    "down": ("podwire.cli.cluster:down", "Remove a local cluster, leaving the machine as it was."),
    "list": ("podwire.cli.cluster:list_clusters", "List the local clusters of this machine."),
    "status": ("podwire.cli.cluster:status", "Show nodes, data planes and processes of a local cluster."),
    "kubeconfig": ("podwire.cli.kubeconfig:kubeconfig", "Print a cluster's kubeconfig, or add it to yours."),
    "exec": ("podwire.cli.cluster:execute", "Run a command in a node's network namespace."),
    "lab": ("podwire.cli.lab:lab", "Cut, slow down and heal the links between the nodes of a local cluster."),
    "probe": ("podwire.cli.probe:probe", "Test connectivity with real packets."),
    "why": ("podwire.cli.why:why", "Explain what becomes of a connection, and by which Service, policy and rule."),
    "conformance": ("podwire.cli.conformance:conformance", "Check policies against files of cases, with real packets."),
    "state": ("podwire.cli.state:state", "Show what a node's kernel should hold, and how it differs."),
    "bgp": ("podwire.cli.bgp:bgp", "Show the BGP sessions of nodes: peer, state, routes, last error."),
    "ipam": ("podwire.cli.ipam:ipam", "Show which node and pod has which addresses, and what is left over."),
    "policy": ("podwire.cli.policy:policy", "Show NetworkPolicies: where in force, what they drop, mistakes."),
    "udp": ("podwire.cli.udp:udp", "Show what the process of the routing backend udp carries."),
    "proxy": ("podwire.cli.proxy:proxy", "Remove the rules of Services from this machine."),
    "agent": ("podwire.cli.component:agent", "Run the node agent: CNI, routing, Services, policies."),
    "controller": ("podwire.cli.component:controller", "Run the cluster's controllers."),
    "dns": ("podwire.cli.component:dns", "Run cluster DNS."),
    "gateway": ("podwire.cli.component:gateway", "Run the gateway for Ingresses, or its engine."),
    "apiserver": ("podwire.cli.component:apiserver", "Run the embedded Kubernetes API server."),
    "kubelet": ("podwire.cli.component:kubelet", "Run the local kubelet: pods as processes in namespaces."),
    "install": ("podwire.cli.install:install", "Install podwire in a cluster."),
    "preflight": ("podwire.cli.preflight:preflight", "Check whether podwire can run on this node, and what to do."),
    "migrate": (
        "podwire.cli.migrate:migrate",
        "Take a cluster from another network to podwire, node by node, and back.",
    ),
    "upgrade": ("podwire.cli.upgrade:upgrade", "Upgrade the network of a cluster while traffic flows."),
    "flows": ("podwire.cli.flows:flows", "Send numbered messages and count what is lost."),
    "uninstall": ("podwire.cli.uninstall:uninstall", "Take podwire off this node."),
    "completion": ("podwire.cli.completion:completion", "Print what bash, zsh or fish needs to complete words."),
    "version": ("podwire.cli.version:version", "Print the versions of podwire, Python and the kernel."),
}
"""By the name of the command: the module with the command, and its line in the overview."""


class _Root(LazyGroup):
    """The group of all commands; status 0 when the reader of the output is gone (click would end with status 1)."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as failure:
            if not _unread():
                raise PodwireError(str(failure)) from failure
            return 0


def _unread() -> bool:
    """Whether the reader of the output is gone; if so, further output is discarded."""
    watched = select.poll()
    try:
        watched.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        return False
    if not watched.poll(0):
        return False
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return True


@click.group(cls=_Root, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="podwire")
def root() -> None:
    """The network of a Kubernetes cluster.

    On one machine, `podwire up` makes a cluster of several nodes out of network namespaces: kubectl talks to it and
    real packets cross it. On a real cluster, `podwire agent`, `controller` and `dns` run as its network.
    """


def main() -> NoReturn:
    """Runs the command line and ends the process."""
    status = _status()
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _unread()
    gc.freeze()  # Python ends with a search for garbage in all that was imported, which takes 20 to 80 ms
    sys.exit(status)


def _status() -> int:
    """Runs the command line and returns the exit status."""
    try:
        status = root.main(standalone_mode=False)
    except click.ClickException as failure:
        failure.show()
        return failure.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except ConfigError as failure:
        for line in map(str, failure.failures if isinstance(failure, ConfigErrors) else (failure,)):
            click.echo(line if line.startswith("podwire") else f"podwire: {line}", err=True)
        return 2
    except (PodwireError, OSError) as failure:
        click.echo(f"podwire: {failure}", err=True)
        return 1
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    main()
