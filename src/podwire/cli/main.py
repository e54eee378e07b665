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
    "up": ("podwire.cli.up:up", "Make a local cluster, or change a running one."),
    "down": ("podwire.cli.cluster:down", "Remove a local cluster; the machine is as before."),
    "list": ("podwire.cli.cluster:list_clusters", "List the local clusters of this machine."),
    "status": ("podwire.cli.cluster:status", "Show nodes, data planes and processes of a local cluster."),
    "kubeconfig": ("podwire.cli.kubeconfig:kubeconfig", "Print a cluster's kubeconfig, or add it to yours."),
    "exec": ("podwire.cli.cluster:execute", "Run a command in a node's network namespace."),
    "lab": ("podwire.cli.lab:lab", "Cut, slow down and heal the links between the nodes of a local cluster."),
    "probe": ("podwire.cli.probe:probe", "Test connectivity with real packets."),
    "why": ("podwire.cli.why:why", "Explain whether a connection works, and which Service, policy and rule decide."),
    "conformance": ("podwire.cli.conformance:conformance", "Run files of policy test cases with real packets."),
    "state": ("podwire.cli.state:state", "Show the planned state of a node's kernel, and differences."),
    "bgp": ("podwire.cli.bgp:bgp", "Show the BGP sessions of nodes: peer, state, routes, last error."),
    "ipam": ("podwire.cli.ipam:ipam", "Show the addresses of nodes and pods, and addresses that nobody uses."),
    "policy": (
        "podwire.cli.policy:policy",
        "Show where NetworkPolicies are in force and what they drop; find mistakes.",
    ),
    "udp": ("podwire.cli.udp:udp", "Show the peers and counters of the routing backend udp."),
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
        "Change a cluster from another network to podwire, node by node, and back.",
    ),
    "upgrade": ("podwire.cli.upgrade:upgrade", "Upgrade the network of a running cluster."),
    "flows": ("podwire.cli.flows:flows", "Send numbered messages and count those that are lost."),
    "uninstall": ("podwire.cli.uninstall:uninstall", "Remove podwire from this node, or its objects from the cluster."),
    "completion": ("podwire.cli.completion:completion", "Print the script for tab completion in bash, zsh or fish."),
    "version": ("podwire.cli.version:version", "Print the versions of podwire, Python and the kernel."),
}
"""By the name of the command: the module with the command, and its line in the overview."""
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Local clusters": ("up", "down", "list", "status", "kubeconfig", "exec", "lab"),
    "Test and explain the network": ("probe", "why", "policy", "state", "ipam", "bgp", "conformance", "flows"),
    "Install on a cluster": ("preflight", "install", "uninstall", "migrate", "upgrade"),
    "Run one component (for containers and service files)": (
        "agent", "controller", "dns", "gateway", "apiserver", "kubelet",
    ),
    "Other": ("udp", "proxy", "completion", "version"),
}  # fmt: skip
"""The sections of the overview, with the names of their commands."""


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


@click.group(cls=_Root, table=COMMANDS, sections=SECTIONS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="podwire")
def root() -> None:
    """The network of a Kubernetes cluster.

    On one machine, `podwire up` makes a cluster of several nodes, without Docker: each node is a network namespace,
    and kubectl works as usual. On a real cluster, the Helm chart or `podwire install` installs podwire as the network.

    \b
    podwire up --nodes 3 -f examples/shop    # make a local cluster with an example application
    podwire why shop/app=web svc/shop/catalog:http    # explain a connection
    podwire down                             # remove the cluster

    `podwire COMMAND --help` explains a command.
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
