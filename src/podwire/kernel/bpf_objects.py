"""Compiled BPF objects: the programs that the package carries, described and loaded by libbpf.

An object has one program of the same name and any maps. libbpf (Debian's package ``libbpf1``) reads the ELF file,
relocates it for the running kernel and loads it; it is used through ctypes, so that a node needs no compiler and no
further Python package. A map that is pinned with the same shape is used again, with its contents. Cost: 20 ms to
load.

Why not our own ELF reader: relocations by the kernel's type information (CO-RE) are libbpf's work, and other data
planes need them.
"""

import contextlib
import ctypes
import hashlib
import os
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Any

from podwire.errors import Unsupported
from podwire.kernel.bpf_syscall import MapShape
from podwire.kernel.failure import refusal
from podwire.state.bpf import MAP_TYPES, BpfFolder, BpfMap, BpfProgram

_LIBRARY = "libbpf.so.1"
_DIGEST_LETTERS = 12
_LOG_BYTES = 1 << 22
"""The log of the verifier is one message, whose last lines matter."""
_WARN = 0


@cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(_LIBRARY, use_errno=True)
    except OSError as missing:
        raise Unsupported("libbpf", detail=f"{_LIBRARY} is not installed (in Debian's package libbpf1)") from missing
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32
    for name, result, arguments in (
        ("bpf_object__open_mem", pointer, (ctypes.c_char_p, ctypes.c_size_t, pointer)),
        ("bpf_object__close", None, (pointer,)),
        ("bpf_object__load", ctypes.c_int, (pointer,)),
        ("bpf_object__next_map", pointer, (pointer, pointer)),
        ("bpf_object__next_program", pointer, (pointer, pointer)),
        ("bpf_map__name", text, (pointer,)),
        ("bpf_map__fd", ctypes.c_int, (pointer,)),
        ("bpf_map__reuse_fd", ctypes.c_int, (pointer, ctypes.c_int)),
        *((f"bpf_map__{field}", number, (pointer,)) for field in _SHAPE),
        ("bpf_program__name", text, (pointer,)),
        ("bpf_program__fd", ctypes.c_int, (pointer,)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.libbpf_set_print(_PRINT)
    return library


_SHAPE = ("type", "key_size", "value_size", "max_entries", "map_flags")
_WARNINGS: list[str] = []


def _keep_warning(level: int, form: bytes, arguments: int) -> int:
    if level == _WARN:
        memory = ctypes.create_string_buffer(_LOG_BYTES)
        ctypes.CDLL(None).vsnprintf(memory, _LOG_BYTES, form, ctypes.c_void_p(arguments))
        _WARNINGS.append(last_words(memory.value.decode(errors="replace")))
        del _WARNINGS[:-3]
    return 0


def last_words(message: str) -> str:
    """A message of libbpf; of the verifier's log, the line that says why the program was refused."""
    lines = message.strip().splitlines() or [""]
    for line, following in pairwise(lines):
        if following.startswith("processed "):
            return f"the verifier says: {line}"
    return lines[0]


_PRINT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(_keep_warning)


def check_library() -> None:
    """Raises: Unsupported when libbpf is not installed."""
    _library()


@cache
def compiled(name: str) -> bytes:
    """The bytes of an object of the package.

    Raises: Unsupported when the package does not carry it.
    """
    from importlib import resources

    file = resources.files("podwire.kernel") / "bpf_programs" / f"{name}.bpf.o"
    try:
        return file.read_bytes()
    except FileNotFoundError as missing:
        raise Unsupported(f"BPF program {name}", detail="the package has no compiled object of it") from missing


def digest(name: str) -> str:
    """The digest of an object's bytes, by which programs of different versions are distinguished."""
    return hashlib.sha256(compiled(name)).hexdigest()[:_DIGEST_LETTERS]


@contextlib.contextmanager
def _opened(name: str) -> Iterator[int]:
    library, data = _library(), compiled(name)
    handle = library.bpf_object__open_mem(data, len(data), None)
    if not handle:
        raise refusal("open", f"BPF object {name}", ctypes.get_errno(), "; ".join(_WARNINGS))
    try:
        yield handle
    finally:
        library.bpf_object__close(handle)


def _maps(handle: int) -> Iterator[tuple[str, int, MapShape]]:
    library, pointer = _library(), library_next(handle, None)
    while pointer:
        shape = MapShape(*(int(getattr(library, f"bpf_map__{field}")(pointer)) for field in _SHAPE))
        yield library.bpf_map__name(pointer).decode(), pointer, shape
        pointer = library_next(handle, pointer)


def library_next(handle: int, pointer: int | None) -> Any:
    """The map of an object that follows another one, or the first."""
    return _library().bpf_object__next_map(handle, pointer)


def map_shapes(name: str) -> dict[str, MapShape]:
    """The maps that an object needs.

    Raises: Unsupported without libbpf; KernelError.
    """
    with _opened(name) as handle:
        return {map_name: shape for map_name, _, shape in _maps(handle)}


def describe(name: str, folder: str) -> BpfFolder:
    """The program and the maps of an object as desired state, without attachments.

    Raises: Unsupported without libbpf; KernelError.
    """
    maps = tuple(as_value(map_name, shape) for map_name, shape in map_shapes(name).items())
    return BpfFolder(folder, (BpfProgram(name, digest(name)),), maps)


def as_value(name: str, shape: MapShape) -> BpfMap:
    """A map as a value."""
    return BpfMap(name, MAP_TYPES.get(shape.type, str(shape.type)), shape.key, shape.value, shape.entries)


def load(name: str, reused: Mapping[str, int]) -> tuple[int, dict[str, int]]:
    """Loads an object; descriptors of its program and of all maps. ``reused`` has descriptors of maps to use again.

    Raises: Unsupported without libbpf; KernelError with the last lines of the verifier's log.
    """
    library = _library()
    with _opened(name) as handle:
        for map_name, pointer, _ in _maps(handle):
            if map_name in reused and library.bpf_map__reuse_fd(pointer, reused[map_name]):
                raise refusal("use again", f"BPF map {map_name}", ctypes.get_errno())
        if failed := library.bpf_object__load(handle):
            raise refusal("load", f"BPF object {name}", -failed, "; ".join(_WARNINGS)[-400:])
        maps = {map_name: os.dup(library.bpf_map__fd(pointer)) for map_name, pointer, _ in _maps(handle)}
        program = library.bpf_object__next_program(handle, None)
        return os.dup(library.bpf_program__fd(program)), maps
