"""The number of the form of state that outlives a process, and what a reader does with one that it does not know.

Every file and database of podwire carries such a number; a file without one was written before there were numbers, in
form 1. A form may grow without another number: a new field has a default, and a reader leaves out fields that it does
not know, so that an older podwire reads what a newer one wrote. Where that is not possible, the number is raised: a
release reads the new form and still writes the old one, and the second release after it writes the new one. A reader
that meets a higher number stops with an error and changes nothing, so that the kernel keeps the last good state and the
newer podwire finds its state as it was.
"""

from podwire.errors import ConfigError


def check_form(number: int, known: int, source: str, field: str = "format") -> None:
    """Raises: ConfigError when state is of a later form than this podwire knows."""
    if number > known:
        problem = f"form {number}, written by a later podwire: this one knows forms up to {known}; use the later one"
        raise ConfigError(source, field, problem)
