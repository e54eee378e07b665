"""The identity of an object that changed. Pure."""

import msgspec


class Changed(msgspec.Struct, frozen=True, gc=False, order=True):
    """An object that was added, changed or deleted."""

    kind: str
    """As Kubernetes spells it: ``Pod``, ``NetworkPolicy``."""
    key: str
    """``namespace/name``, or ``name`` of an object without namespace."""

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"
