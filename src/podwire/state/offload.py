"""Checksum offload of tunnel devices: who computes the checksums of packets that a device sends.

With ``tx on`` the device below may compute them, with ``tx off`` the kernel does before the packet enters the device::

    offload podwire-vxlan tx off
"""

from collections.abc import Iterable, Iterator

from podwire.state import grammar
from podwire.state.grammar import Grammar, Option
from podwire.state.value import Value


class Offload(Value, frozen=True):
    """The transmit checksum offload of a device: ``on`` or ``off``."""

    device: str
    tx: str

    def __post_init__(self) -> None:
        if self.tx not in ("on", "off"):
            raise ValueError(f"tx {self.tx!r}: expected on or off")

    def __str__(self) -> str:
        return next(self.lines())

    def lines(self) -> Iterator[str]:
        """The text: one line."""
        yield f"offload {self.device} tx {self.tx}"


_OFFLOAD = Grammar("offload", "device", (Option("tx", "tx"),))


def parse(lines: Iterable[str]) -> tuple[Offload, ...]:
    """The values in a text form.

    Raises: ValueError naming the wrong word.
    """
    return tuple(_parse(line) for line in lines)


def _parse(line: str) -> Offload:
    noun, *tokens = grammar.split(line)
    fields = grammar.parse(_OFFLOAD, tokens)
    if noun != _OFFLOAD.noun or "tx" not in fields:
        raise ValueError(f"{line!r}: expected offload DEVICE tx on or off")
    return Offload(**fields)
