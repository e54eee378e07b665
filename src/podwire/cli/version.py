"""The command ``podwire version``."""

import json
import platform
from pathlib import Path

import click

import podwire
from podwire.cli.options import output_option
from podwire.local.release import version_of


@click.command()
@output_option
def version(output: str) -> None:
    """Print the versions of podwire, Python and the kernel, for example for a bug report."""
    versions = {
        "podwire": version_of(Path(podwire.__file__).parents[1]),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
    }
    if output == "json":
        click.echo(json.dumps(versions))
    else:
        click.echo("\n".join(f"{name:<8} {value}" for name, value in versions.items()))
