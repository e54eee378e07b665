"""The message of a command that a person ends with Ctrl-C: what the command leaves behind, and what to do then."""

from collections.abc import Iterator
from contextlib import contextmanager

import click


@contextmanager
def message_when_interrupted(message: str) -> Iterator[None]:
    """Prints the message on standard error when the block is interrupted; the exit status is then 130."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"\npodwire: interrupted; {message}", err=True)
        raise
