"""Options that several commands share. This module imports little, so that completion in a shell is fast."""

from collections.abc import Sequence

import click

from podwire.cli import completion

SECONDS = click.FloatRange(min=0, min_open=True)
"""The type of options in seconds."""

name_option = click.option(
    "--name",
    default="podwire",
    show_default=True,
    metavar="NAME",
    shell_complete=completion.cluster_names,
    help="Name of the local cluster; several can run side by side.",
)
running_option = click.option(
    "--name",
    metavar="NAME",
    shell_complete=completion.cluster_names,
    help="Name of the local cluster.  [default: the cluster of $KUBECONFIG, or podwire]",
)
"""For commands that change no cluster; :func:`podwire.cli.target.running_cluster` takes the value."""

recursive_option = click.option("-R", "--recursive", is_flag=True, help="Also read the folders below each folder.")

output_option = click.option(
    "-o", "--output", type=click.Choice(("text", "json")), default="text", show_default=True, help="Output format."
)
kubeconfig_option = click.option(
    "--kubeconfig", metavar="FILE", help="Kubeconfig of the cluster, local or remote.  [default: $KUBECONFIG]"
)
agent_config_option = click.option(
    "--config", "config_file", metavar="FILE", help="On a real node: the configuration file of the agent."
)


def without_option(arguments: Sequence[str], option: str) -> list[str]:
    """The arguments of a command line without an option and its value, for a build that does not know it."""
    remaining, skip = [], False
    for argument in arguments:
        if not skip and argument != option and not argument.startswith(f"{option}="):
            remaining.append(argument)
        skip = not skip and argument == option
    return remaining


def name_is_typed(context: click.Context) -> bool:
    """Whether the command line has ``--name``, so that ``$KUBECONFIG`` does not choose the cluster."""
    return context.get_parameter_source("name") is not click.core.ParameterSource.DEFAULT
