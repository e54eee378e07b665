"""Options that several commands share. This module imports little, so that shells complete words at once."""

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
    help="The cluster; several can run side by side.",
)
running_option = click.option(
    "--name",
    metavar="NAME",
    shell_complete=completion.cluster_names,
    help="The cluster; several can run side by side.  [default: that of $KUBECONFIG, or podwire]",
)
"""For commands that change no cluster; :func:`podwire.cli.target.running_cluster` takes the value."""

recursive_option = click.option("-R", "--recursive", is_flag=True, help="Read the folders below the given folders too.")
