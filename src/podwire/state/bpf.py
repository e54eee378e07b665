"""BPF programs, maps and attachments as values: the contents of one folder of the BPF file system.

A folder below ``/sys/fs/bpf/podwire`` has everything that one part keeps in the kernel; its name is the owner mark.
The text has a line for each program, map and attachment::

    bpf-program node-1-dns dns_answers digest 3f9c5a7be012
    bpf-map node-1-dns dns_names type hash key 128 value 264 entries 131072
    bpf-attach node-1-dns pod1234 hook ingress program dns_answers

The digest is that of the compiled object from which the program was loaded. The contents of maps are not part of the
value: the part that owns a map compares them.
"""

from collections.abc import Iterable, Iterator, Sequence

from podwire.state import grammar
from podwire.state.grammar import Grammar, Option
from podwire.state.value import Value, canonical

HOOKS = ("ingress", "egress", "xdp")
MAP_TYPES = {1: "hash", 2: "array", 5: "percpu_hash", 6: "percpu_array", 9: "lru_hash", 11: "lpm_trie"}
"""The types of maps by their numbers in linux/bpf.h; another type is its number."""


class BpfProgram(Value, frozen=True):
    """A program; ``digest`` identifies the compiled object, which has the name of the program."""

    name: str
    digest: str


class BpfMap(Value, frozen=True):
    """A map with the sizes of a key and a value in bytes, and the greatest number of entries."""

    name: str
    type: str
    key: int
    value: int
    entries: int


class BpfAttachment(Value, frozen=True):
    """A program at a hook of a device: ``ingress`` or ``egress`` of traffic control, or ``xdp``."""

    device: str
    hook: str
    program: str

    def __post_init__(self) -> None:
        if self.hook not in HOOKS:
            raise ValueError(f"hook {self.hook!r}: expected one of {', '.join(HOOKS)}")


class BpfFolder(Value, frozen=True):
    """A folder with its contents, each sorted."""

    folder: str
    programs: tuple[BpfProgram, ...] = ()
    maps: tuple[BpfMap, ...] = ()
    attachments: tuple[BpfAttachment, ...] = ()

    def __post_init__(self) -> None:
        for field in ("programs", "maps", "attachments"):
            canonical(self, field, tuple(sorted(getattr(self, field))))

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The text, a line at a time."""
        for program in self.programs:
            yield f"bpf-program {self.folder} {program.name} digest {program.digest}"
        for m in self.maps:
            yield f"bpf-map {self.folder} {m.name} type {m.type} key {m.key} value {m.value} entries {m.entries}"
        for a in self.attachments:
            yield f"bpf-attach {self.folder} {a.device} hook {a.hook} program {a.program}"


_LINES: dict[str, tuple[Grammar, type[Value], str]] = {
    "bpf-program": (Grammar("bpf-program", "name", (Option("digest", "digest"),)), BpfProgram, "programs"),
    "bpf-map": (
        Grammar(
            "bpf-map",
            "name",
            (
                Option("type", "type"),
                Option("key", "key", "number"),
                Option("value", "value", "number"),
                Option("entries", "entries", "number"),
            ),
        ),
        BpfMap,
        "maps",
    ),
    "bpf-attach": (
        Grammar("bpf-attach", "device", (Option("hook", "hook"), Option("program", "program"))),
        BpfAttachment,
        "attachments",
    ),
}


def parse(lines: Iterable[str]) -> tuple[BpfFolder, ...]:
    """The folders of a text, in its order.

    Raises: ValueError naming the wrong line.
    """
    folders: dict[str, dict[str, list[Value]]] = {}
    for line in lines:
        noun, *tokens = grammar.split(line) or [""]
        if noun not in _LINES or len(tokens) < 2:
            raise ValueError(f"{line!r}: expected one of {', '.join(_LINES)}, a folder and a name")
        own, type_, field = _LINES[noun]
        fields = folders.setdefault(tokens[0], {"programs": [], "maps": [], "attachments": []})
        fields[field].append(_parse(line, own, type_, tokens[1:]))
    return tuple(
        BpfFolder(folder, **{field: tuple(values) for field, values in fields.items()})  # type: ignore[arg-type]
        for folder, fields in folders.items()
    )


def _parse(line: str, own: Grammar, type_: type[Value], tokens: Sequence[str]) -> Value:
    try:
        return type_(**grammar.parse(own, list(tokens)))
    except TypeError as missing:
        raise ValueError(f"{line!r}: {missing}") from missing
