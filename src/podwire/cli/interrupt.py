"""What a command says when a person ends it with Ctrl-C: what it leaves behind, and what to do about that."""

from collections.abc import Iterator
from contextlib import contextmanager

import click


@contextmanager
def says_when_interrupted(left: str) -> Iterator[None]:
    """Prints ``left`` on standard error when the block is interrupted; the exit status is 130 then."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"\npodwire: interrupted; {left}", err=True)
        raise
