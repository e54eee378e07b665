"""Programs of the classic packet filter, as iptables has them in ``-m bpf --bytecode``: run for a packet (pure).

A text is the number of instructions and, behind commas, each as ``code jt jf k``. They read the packet from its IP
header on. Known are those by which rules compare addresses; another raises, it is never passed over.

Source: ``include/uapi/linux/filter.h``, ``bpf_common.h``.
"""

from enum import IntEnum

from podwire.errors import ProtocolError
from podwire.state.address import pack_ip


class _Code(IntEnum):
    LOAD = 0x20
    """Four bytes of the packet: ``ld [k]``."""
    REMEMBER = 0x07
    """``tax``."""
    IF_EQUAL = 0x1D
    """To what is remembered: ``jeq x``."""
    RETURN = 0x06
    """``ret #k``."""


_ADDRESSES = {4: 12, 16: 8}
"""Where the source stands in the header, by the length of an address; the destination is behind it."""


def same_ends(family: str) -> str:
    """The program for packets of which the source is the destination."""
    size = 16 if family == "ip6" else 4
    first = _ADDRESSES[size]
    found = []
    for at in range(first, first + size, 4):
        left = (first + size - at) // 4
        found += [
            (_Code.LOAD, 0, 0, at),
            (_Code.REMEMBER, 0, 0, 0),
            (_Code.LOAD, 0, 0, at + size),
            (_Code.IF_EQUAL, 0, left * 4 - 3, 0),
        ]
    found += [(_Code.RETURN, 0, 0, 1), (_Code.RETURN, 0, 0, 0)]
    return ",".join((str(len(found)), *(" ".join(str(int(word)) for word in each) for each in found)))


def run(text: str, source: str, destination: str) -> bool:
    """Whether a program matches a packet between two addresses.

    Raises: ProtocolError for an instruction that is not known here, or a place in the packet that is no address's.
    """
    _, *words = text.split(",")
    program = [tuple(map(int, word.split())) for word in words]
    ends = pack_ip(source) + pack_ip(destination)
    first = _ADDRESSES[len(ends) // 2]
    found = remembered = at = 0
    while at < len(program):
        code, yes, no, value = program[at]
        at += 1
        match code:
            case _Code.LOAD if first <= value <= first + len(ends) - 4:
                found = int.from_bytes(ends[value - first : value - first + 4], "big")
            case _Code.REMEMBER:
                remembered = found
            case _Code.IF_EQUAL:
                at += yes if found == remembered else no
            case _Code.RETURN:
                return bool(value)
            case _:
                break
    raise ProtocolError("local", f"instruction {at} of {text} is not known to the tracer")
