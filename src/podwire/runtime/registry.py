"""What may be chosen by name: routing backends, data planes, tracers and controllers; each is loaded on demand.

A registry is one literal, from a name to ``module:Attribute``. A module is imported when something of it is loaded, so
a process has in memory only what it uses. To register one more is one line in the literal; nothing registers itself.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Generic, TypeVar

from podwire.errors import ConfigError

Registered = TypeVar("Registered")


class Registry(dict[str, str], Generic[Registered]):
    """Entries of one kind: ``module:Attribute``, or only ``module``, by name.

    The order is a preference: where one entry cannot be had, the next one stands in.
    """

    def __init__(self, kind: str, field: str, entries: Mapping[str, str]) -> None:
        """``kind`` names an entry in errors (``routing backend``), ``field`` the setting that chooses one."""
        super().__init__(entries)
        self.kind = kind
        self.field = field

    def check(self, name: str, source: str = "configuration", path: str = "", besides: tuple[str, ...] = ()) -> None:
        """Refuses a name that is not registered; ``path`` is the field in ``source`` if it is not that of the registry.

        ``besides`` are words that the field allows too.

        Raises: ConfigError with all names there are.
        """
        if name not in self and name not in besides:
            known = ", ".join((*besides, *self))
            raise ConfigError(source, path or self.field, f"{name!r} is not a {self.kind}; there are {known}")

    def load(self, name: str) -> Registered:
        """What is registered under a name: a class, a function or a module.

        Raises: ConfigError for a name that is not registered, with all there are.
        """
        self.check(name)
        module, _, attribute = self[name].partition(":")
        loaded = import_module(module)
        found: Registered = getattr(loaded, attribute) if attribute else loaded  # type: ignore[assignment]
        return found

    def preload(self) -> None:
        """Imports the modules of all entries, for processes that are forked later."""
        for entry in self.values():
            import_module(entry.partition(":")[0])
