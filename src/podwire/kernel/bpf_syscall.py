"""The system call bpf(2): maps, pins, links and information, each as one function.

Source: include/uapi/linux/bpf.h (``union bpf_attr``). A descriptor that a function returns belongs to the caller.
Cost: a call takes 2 to 10 us; a batch writes 1.5 million entries a second.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from podwire.errors import KernelError, KernelNotFound, Unsupported
from podwire.kernel.failure import refusal

_NUMBERS = {"x86_64": 321, "aarch64": 280, "riscv64": 280}
(
    BPF_MAP_CREATE,
    BPF_MAP_LOOKUP_ELEM,
    BPF_MAP_UPDATE_ELEM,
    BPF_MAP_DELETE_ELEM,
    BPF_MAP_GET_NEXT_KEY,
    BPF_PROG_LOAD,
    BPF_OBJ_PIN,
    BPF_OBJ_GET,
) = range(8)
BPF_PROG_TEST_RUN, BPF_PROG_GET_FD_BY_ID, BPF_OBJ_GET_INFO_BY_FD = 10, 13, 15
BPF_MAP_UPDATE_BATCH, BPF_MAP_DELETE_BATCH, BPF_LINK_CREATE, BPF_LINK_UPDATE = 26, 27, 28, 29
BPF_PROG_TYPE_SCHED_CLS = 3
BPF_XDP, BPF_TCX_INGRESS, BPF_TCX_EGRESS = 37, 46, 47
_ATTRIBUTES = 144
"""Bytes of the largest attribute; the kernel refuses bytes behind its own attribute only if they are not zero."""
_LIBC = ctypes.CDLL(None, use_errno=True)


def call(command: int, attributes: bytes, operation: str, subject: str) -> tuple[int, bytes]:
    """The result of a command, and the attributes after it.

    Raises: KernelError and its subclasses.
    """
    number = _NUMBERS.get(os.uname().machine)
    if number is None:
        raise Unsupported("bpf", detail=f"no system call number known for {os.uname().machine}")
    memory = ctypes.create_string_buffer(attributes, max(_ATTRIBUTES, len(attributes)))
    result = _LIBC.syscall(number, command, memory, len(memory))
    if result < 0:
        raise refusal(operation, subject, ctypes.get_errno())
    return int(result), memory.raw


def _address(memory: ctypes.Array[ctypes.c_char]) -> int:
    return ctypes.addressof(memory)


# Pins and information


def pin(descriptor: int, path: str) -> None:
    """Gives an object a name in the BPF file system, which keeps it in the kernel.

    Raises: KernelExists, KernelError.
    """
    name = ctypes.create_string_buffer(os.fsencode(path))
    call(BPF_OBJ_PIN, struct.pack("=QII", _address(name), descriptor, 0), "pin", path)


def open_pin(path: str) -> int:
    """A descriptor of the object with a name.

    Raises: KernelNotFound, KernelError.
    """
    name = ctypes.create_string_buffer(os.fsencode(path))
    return call(BPF_OBJ_GET, struct.pack("=QII", _address(name), 0, 0), "open", path)[0]


def information(descriptor: int, size: int = 128) -> bytes:
    """The first bytes of the kernel's information about an object.

    Raises: KernelError.
    """
    memory = ctypes.create_string_buffer(size)
    attributes = struct.pack("=IIQ", descriptor, size, _address(memory))
    call(BPF_OBJ_GET_INFO_BY_FD, attributes, "read information of", "BPF object")
    return memory.raw


class MapShape(NamedTuple):
    """What a map is made of: type, sizes of key and value in bytes, greatest number of entries, flags."""

    type: int
    key: int
    value: int
    entries: int
    flags: int


def map_shape(descriptor: int) -> MapShape:
    """The shape of a map.

    Raises: KernelError.
    """
    kind, _id, key, value, entries, flags = struct.unpack_from("=6I", information(descriptor))
    return MapShape(kind, key, value, entries, flags)


def program_id(descriptor: int) -> int:
    """The number of a program in the kernel."""
    return int(struct.unpack_from("=II", information(descriptor))[1])


# Maps


class BpfMapTable:
    """An open map; keys and values are bytes of the map's sizes. ``close`` leaves the map in the kernel."""

    def __init__(self, descriptor: int, name: str) -> None:
        self.descriptor = descriptor
        self.name = name
        self.shape = map_shape(descriptor)

    def close(self) -> None:
        """Closes the descriptor."""
        os.close(self.descriptor)

    def _element(self, command: int, key: bytes, memory: ctypes.Array[ctypes.c_char] | None, operation: str) -> None:
        held = ctypes.create_string_buffer(key, len(key))
        at = _address(memory) if memory is not None else 0
        call(command, struct.pack("=IIQQQ", self.descriptor, 0, _address(held), at, 0), operation, self.name)

    def read(self, key: bytes, copies: int = 1) -> bytes | None:
        """The value of a key, or None; of a map for each processor the values of all, eight-byte aligned."""
        memory = ctypes.create_string_buffer((self.shape.value + 7 & ~7) * copies if copies > 1 else self.shape.value)
        try:
            self._element(BPF_MAP_LOOKUP_ELEM, key, memory, "look up in")
        except KernelNotFound:
            return None
        return memory.raw

    def write(self, key: bytes, value: bytes) -> None:
        """Sets a key.

        Raises: KernelError, E2BIG when the map is full.
        """
        self._element(BPF_MAP_UPDATE_ELEM, key, ctypes.create_string_buffer(value, len(value)), "write to")

    def delete(self, key: bytes) -> None:
        """Deletes a key; has no effect when the map does not have it.

        Raises: KernelError.
        """
        try:
            self._element(BPF_MAP_DELETE_ELEM, key, None, "delete from")
        except KernelNotFound:
            return

    def write_all(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Sets many keys, in batches where the kernel has them (Linux 5.6).

        Raises: KernelError; some keys may be set.
        """
        if len(entries) < 2:
            for key, value in entries:
                self.write(key, value)
            return
        keys = ctypes.create_string_buffer(b"".join(key for key, _ in entries))
        values = ctypes.create_string_buffer(b"".join(value for _, value in entries))
        attributes = struct.pack(
            "=QQQQIIQQ", 0, 0, _address(keys), _address(values), len(entries), self.descriptor, 0, 0
        )
        try:
            call(BPF_MAP_UPDATE_BATCH, attributes, "write to", self.name)
        except KernelError as failure:
            if failure.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            for key, value in entries:
                self.write(key, value)

    def __iter__(self) -> Iterator[bytes]:
        """All keys, in the kernel's order; a key that is deleted meanwhile may be left out."""
        following = ctypes.create_string_buffer(self.shape.key)
        key: ctypes.Array[ctypes.c_char] | None = None
        while True:
            at = _address(key) if key is not None else 0
            try:
                attributes = struct.pack("=IIQQQ", self.descriptor, 0, at, _address(following), 0)
                call(BPF_MAP_GET_NEXT_KEY, attributes, "list", self.name)
            except KernelNotFound:
                return
            yield following.raw
            key = ctypes.create_string_buffer(following.raw, self.shape.key)


# Programs and links


def load_program(kind: int, instructions: bytes) -> int:
    """Loads instructions that need no relocation, as probes do; a descriptor of the program.

    Raises: KernelError.
    """
    code, license_text = ctypes.create_string_buffer(instructions), ctypes.create_string_buffer(b"GPL")
    attributes = struct.pack("=IIQQ", kind, len(instructions) // 8, _address(code), _address(license_text))
    return call(BPF_PROG_LOAD, attributes, "load", "BPF program")[0]


def create_link(program: int, interface_index: int, attach_type: int, flags: int, subject: str) -> int:
    """Attaches a program to a device of this thread's namespace; a descriptor, with which the attachment ends.

    Raises: KernelError, EBUSY when the device has another XDP program, EINVAL when the kernel has no such link.
    """
    attributes = struct.pack("=IIIIIIQ", program, interface_index, attach_type, flags, 0, 0, 0)
    return call(BPF_LINK_CREATE, attributes, "attach BPF program to", subject)[0]


def update_link(link: int, program: int, subject: str) -> None:
    """Puts another program in the place of that of a link, without a packet that meets neither.

    Raises: KernelError.
    """
    call(BPF_LINK_UPDATE, struct.pack("=IIII", link, program, 0, 0), "replace BPF program of", subject)


class LinkFacts(NamedTuple):
    """The program of a link by its number, and the interface index of its device; 0: the device is gone."""

    program: int
    interface_index: int


def link_facts(link: int) -> LinkFacts:
    """What a link attaches to what.

    Raises: KernelError.
    """
    _kind, _id, program, _padding, index = struct.unpack_from("=5I", information(link))
    return LinkFacts(program, index)


class ProgramRun(NamedTuple):
    """The outcome of a program for one packet."""

    verdict: int
    packet: bytes
    duration_ns: int


def run_program(program: int, packet: bytes, interface_index: int = 1) -> ProgramRun:
    """Runs a program of traffic control for a packet that is not sent anywhere (BPF_PROG_TEST_RUN).

    Raises: KernelError.
    """
    packet_in = ctypes.create_string_buffer(packet, len(packet))
    result = ctypes.create_string_buffer(4096)
    context = ctypes.create_string_buffer(192)
    struct.pack_into("=I", context, 40, interface_index)
    attributes = struct.pack(
        "=IIIIQQIIIIQQ",
        program, 0, len(packet), len(result), _address(packet_in), _address(result), 1, 0, len(context), 0,
        _address(context), 0,
    )  # fmt: skip
    _, after = call(BPF_PROG_TEST_RUN, attributes, "run", "BPF program")
    _, verdict, _, size = struct.unpack_from("=IIII", after)
    (duration_ns,) = struct.unpack_from("=I", after, 36)
    return ProgramRun(verdict, result.raw[:size], duration_ns)
