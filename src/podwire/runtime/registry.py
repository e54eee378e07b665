"""Entries that are chosen by name and loaded on demand: routing backends, data planes, tracers and controllers.

A registry is one literal, from a name to ``module:Attribute``. A module is imported when one of its attributes is
loaded, so a process has in memory only what it uses. A new entry is one line in the literal; nothing registers itself.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Generic, TypeVar

from podwire.errors import ConfigError

Registered = TypeVar("Registered")


class Registry(dict[str, str], Generic[Registered]):
    """Entries of one kind: ``module:Attribute``, or only ``module``, by name.

    The order is a preference: when an entry is not available, the next one is the substitute.
    """

    def __init__(self, kind: str, field: str, entries: Mapping[str, str]) -> None:
        """``kind`` names an entry in errors (``routing backend``), ``field`` the setting that chooses one."""
        super().__init__(entries)
        self.kind = kind
        self.field = field

    def check(self, name: str, source: str = "configuration", path: str = "", besides: tuple[str, ...] = ()) -> None:
        """Refuses a name that is not registered; ``path`` is the field in ``source`` if it is not that of the registry.

        ``besides`` are further allowed words.

        Raises: ConfigError with all registered names.
        """
        if name not in self and name not in besides:
            known = ", ".join((*besides, *self))
            raise ConfigError(source, path or self.field, f"{name!r} is not a {self.kind}; expected one of {known}")

    def load(self, name: str) -> Registered:
        """The registered class, function or module.

        Raises: ConfigError with all registered names, when this name is not registered.
        """
        self.check(name)
        module, _, attribute = self[name].partition(":")
        loaded = import_module(module)
        entry: Registered = getattr(loaded, attribute) if attribute else loaded  # type: ignore[assignment]
        return entry

    def preload(self) -> None:
        """Imports the modules of all entries, for processes that are forked later."""
        for entry in self.values():
            import_module(entry.partition(":")[0])
