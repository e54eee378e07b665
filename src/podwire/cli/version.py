"""The command ``podwire version``."""

import json
import platform
from importlib import metadata

import click


@click.command()
@click.option("-o", "--output", type=click.Choice(("text", "json")), default="text", show_default=True)
def version(output: str) -> None:
    """Print the versions of podwire, Python and the kernel, for example for a bug report."""
    found = {
        "podwire": metadata.version("podwire"),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
    }
    if output == "json":
        click.echo(json.dumps(found))
    else:
        click.echo("\n".join(f"{name:<8} {value}" for name, value in found.items()))
