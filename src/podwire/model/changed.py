"""Which object something happened to (pure)."""

import msgspec


class Changed(msgspec.Struct, frozen=True, gc=False, order=True):
    """An object that came, changed or went."""

    kind: str
    """As Kubernetes spells it: ``Pod``, ``NetworkPolicy``."""
    key: str
    """``namespace/name``, or ``name`` of an object without namespace."""

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"
