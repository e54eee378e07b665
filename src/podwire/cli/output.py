"""Prints the results of commands as JSON."""

import click
import msgspec


def print_json(value: object) -> None:
    """Prints a result as an indented JSON document."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
