"""Programs of the classic packet filter, as iptables has them in ``-m bpf --bytecode``: run for a packet. Pure.

The text is the number of instructions and, after commas, each instruction as ``code jt jf k``. They read the packet
from its IP header on. Only the instructions by which rules compare addresses are supported; any other raises an error.

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
    """Comparison with the index register: ``jeq x``."""
    RETURN = 0x06
    """``ret #k``."""


_ADDRESSES = {4: 12, 16: 8}
"""Offset of the source in the header, by the length of an address; the destination follows it."""


def same_ends(family: str) -> str:
    """The program for packets whose source and destination are equal."""
    size = 16 if family == "ip6" else 4
    first = _ADDRESSES[size]
    program = []
    for at in range(first, first + size, 4):
        comparisons_left = (first + size - at) // 4
        program += [
            (_Code.LOAD, 0, 0, at),
            (_Code.REMEMBER, 0, 0, 0),
            (_Code.LOAD, 0, 0, at + size),
            (_Code.IF_EQUAL, 0, comparisons_left * 4 - 3, 0),
        ]
    program += [(_Code.RETURN, 0, 0, 1), (_Code.RETURN, 0, 0, 0)]
    return ",".join(
        (str(len(program)), *(" ".join(str(int(field)) for field in instruction) for instruction in program))
    )


def run(text: str, source: str, destination: str) -> bool:
    """Whether a program matches a packet between two addresses.

    Raises: ProtocolError for an unsupported instruction, or an offset that is not one of an address.
    """
    _, *instructions = text.split(",")
    program = [tuple(map(int, instruction.split())) for instruction in instructions]
    addresses = pack_ip(source) + pack_ip(destination)
    first = _ADDRESSES[len(addresses) // 2]
    accumulator = index_register = at = 0
    while at < len(program):
        code, if_true, if_false, value = program[at]
        at += 1
        match code:
            case _Code.LOAD if first <= value <= first + len(addresses) - 4:
                accumulator = int.from_bytes(addresses[value - first : value - first + 4], "big")
            case _Code.REMEMBER:
                index_register = accumulator
            case _Code.IF_EQUAL:
                at += if_true if accumulator == index_register else if_false
            case _Code.RETURN:
                return bool(value)
            case _:
                break
    raise ProtocolError("local", f"instruction {at} of {text} is not known to the tracer")
