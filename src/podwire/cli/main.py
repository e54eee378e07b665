"""The command ``podwire``: a table of commands, loaded when they are called, and the exit statuses.

Exit status: 0 done; 1 something expected failed (a probe, a cluster that does not come up, `state --diff` that finds a
difference); 2 the input is wrong, or `state --diff` cannot compare; 130 interrupted. Errors are one line on standard
error, without a traceback.
"""

import sys
from collections.abc import Mapping
from typing import NoReturn

import click

from podwire.cli.lazy import LazyGroup
from podwire.errors import ConfigError, PodwireError

COMMANDS: Mapping[str, tuple[str, str]] = {
    "up": ("podwire.cli.cluster:up", "Bring up a local cluster, or change a running one."),
    "down": ("podwire.cli.cluster:down", "Take a local cluster away, leaving the machine as it was."),
    "status": ("podwire.cli.cluster:status", "Show nodes, data planes and processes of a local cluster."),
    "kubeconfig": ("podwire.cli.cluster:kubeconfig", "Print the path or the text of a cluster's kubeconfig."),
    "exec": ("podwire.cli.cluster:execute", "Run a command in a node's network namespace."),
    "probe": ("podwire.cli.probe:probe", "Test connectivity with real packets."),
    "why": ("podwire.cli.why:why", "Explain what becomes of a connection to a Service."),
    "conformance": ("podwire.cli.conformance:conformance", "Check policies against files of cases, with real packets."),
    "state": ("podwire.cli.state:state", "Show what a node's kernel should hold, and how it differs."),
    "policy": ("podwire.cli.policy:policy", "Show NetworkPolicies: in force where, dropping what, wrong how."),
    "proxy": ("podwire.cli.proxy:proxy", "Remove the rules of Services from this machine."),
    "agent": ("podwire.cli.component:agent", "Run the node agent: CNI, routing, Services."),
    "controller": ("podwire.cli.component:controller", "Run the cluster's controllers."),
    "dns": ("podwire.cli.component:dns", "Run cluster DNS."),
    "apiserver": ("podwire.cli.component:apiserver", "Run the embedded Kubernetes API server."),
    "kubelet": ("podwire.cli.component:kubelet", "Run the local kubelet: pods as processes in namespaces."),
}
"""Name of the command: where it is, and its line in the overview."""


@click.group(cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="podwire")
def root() -> None:
    """The network of a Kubernetes cluster.

    On one machine, `podwire up` makes a cluster of several nodes out of network namespaces: kubectl talks to it and
    real packets cross it. On a real cluster, `podwire agent`, `controller` and `dns` run as its network.
    """


def main() -> NoReturn:
    """Runs the command line and ends the process."""
    try:
        status = root.main(standalone_mode=False)
    except click.UsageError as failure:
        failure.show()
        sys.exit(2)
    except click.ClickException as failure:
        failure.show()
        sys.exit(failure.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except ConfigError as failure:
        click.echo(f"podwire: {failure}", err=True)
        sys.exit(2)
    except PodwireError as failure:
        click.echo(f"podwire: {failure}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(0)
    except OSError as failure:
        click.echo(f"podwire: {failure}", err=True)
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
