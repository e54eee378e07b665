"""Extracts the protobuf field tables of the Kubernetes API from a kubectl binary.

A Go program that links generated protobuf code carries the gzipped ``FileDescriptorProto`` of each file; those
of ``k8s.io/api`` and ``k8s.io/apimachinery`` say which field has which number and type. Names are those of the
OpenAPI definitions, so that the decoder finds a message by the schema's own table.

Output: ``protobuf.json.xz`` in ``src/podwire/embedded/apiserver/schema``: ``{message: {number: [name, type]}}``. A type is
``int``, ``bool``, ``double``, ``string``, ``bytes`` or a message; before it ``[]`` for a list, ``{}`` for a map,
``^`` for a message whose fields stand in the one around it, ``?`` for a field whose zero is a value.

Usage: ``python scripts/make_protobuf.py /usr/bin/kubectl``
"""

import json
import lzma
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from podwire.embedded.apiserver.protobuf import scan
from podwire.embedded.apiserver.schema import data

OUT = Path(__file__).parent.parent / "src" / "podwire" / "embedded" / "apiserver" / "schema" / "protobuf.json.xz"
MAGIC = re.compile(re.escape(b"\x1f\x8b\x08" + bytes(5)))
WINDOW = 400_000
SCALARS = {1: "double", 2: "double", 8: "bool", 9: "string", 12: "bytes"}
MESSAGE = 11
REPEATED = 3

# Optional numbers, flags and texts that Go holds as pointers: there an encoded zero was set by somebody.
_POINTER_NAMES = """
    activeDeadlineSeconds allocateLoadBalancerNodePorts allowPrivilegeEscalation allowVolumeExpansion
    attachRequired automountServiceAccountToken averageUtilization backoffLimit backoffLimitPerIndex
    blockOwnerDeletion completions controller currentCPUUtilizationPercentage defaultMode
    deletionGracePeriodSeconds enableServiceLinks expirationSeconds failedJobsHistoryLimit fsGroup
    gracePeriodSeconds hostUsers immutable leaseDurationSeconds leaseTransitions manualSelector maxFailedIndexes
    minReplicas mode observedGeneration optional orphanDependents parallelism partition podInfoOnMount port priority
    privileged progressDeadlineSeconds readOnlyRootFilesystem ready replicas requiresRepublish
    revisionHistoryLimit runAsGroup runAsNonRoot runAsUser serving setHostnameAsFQDN shareProcessNamespace
    stabilizationWindowSeconds startingDeadlineSeconds storageCapacity storageClassName successfulJobsHistoryLimit
    suspend targetCPUUtilizationPercentage terminating terminationGracePeriodSeconds tolerationSeconds
    ttlSecondsAfterFinished weight
"""
POINTERS = frozenset(_POINTER_NAMES.split())


def files(binary: bytes) -> Iterator[bytes]:
    """Every gzipped descriptor of a Kubernetes file in the binary."""
    for match in MAGIC.finditer(binary):
        inflate = zlib.decompressobj(31)
        try:
            out = inflate.decompress(binary[match.start() : match.start() + WINDOW])
        except zlib.error:
            continue
        if inflate.eof and out[:1] == b"\x0a" and out[2:].startswith(b"k8s.io/api"):
            yield out


def texts(message: bytes, number: int) -> list[bytes]:
    """All values of a length-delimited field."""
    return [value for found, _, value in scan(message) if found == number and isinstance(value, bytes)]


def number(message: bytes, field: int) -> int:
    """The value of a varint field, 0 where it is missing."""
    return next((value for found, _, value in scan(message) if found == field and isinstance(value, int)), 0)


def definition_name(name: str) -> str:
    """``.k8s.io.api.core.v1.Pod`` as the OpenAPI definitions name it."""
    return "io.k8s." + name.lstrip(".").removeprefix("k8s.io.")


def field_entry(field: bytes, entries: dict[str, str], owner: str) -> list[str]:
    """Name and type of one field."""
    name = texts(field, 1)[0].decode()
    kind, repeated = number(field, 5), number(field, 4) == REPEATED
    schema = data.definitions().get(owner, {})
    known = schema.get("properties", {})
    name = next((key for key in known if key.lower() == name.lower()), name)
    if kind != MESSAGE:
        text = SCALARS.get(kind, "int")
        keep = "?" if name in POINTERS or name in schema.get("required", ()) else ""
        return [name, ("[]" if repeated else keep) + text]
    target = texts(field, 6)[0].decode()
    if target in entries:
        return [name, "{}" + entries[target]]
    if repeated:
        return [name, "[]" + definition_name(target)]
    inline = known and name not in known
    return [name, ("^" if inline else "") + definition_name(target)]


def messages(file: bytes) -> Iterator[tuple[str, dict[int, list[str]]]]:
    """Every message of a file with its fields by number."""
    package = texts(file, 2)[0].decode()
    for message in texts(file, 4):
        name = texts(message, 1)[0].decode()
        entries: dict[str, str] = {}
        for nested in texts(message, 3):
            value = next(field for field in texts(nested, 2) if number(field, 3) == 2)
            kind = number(value, 5)
            target = texts(value, 6)[0].decode() if kind == MESSAGE else ""
            entry = f".{package}.{name}.{texts(nested, 1)[0].decode()}"
            entries[entry] = definition_name(target) if target else SCALARS.get(kind, "int")
        owner = definition_name(f"{package}.{name}")
        yield owner, {number(field, 3): field_entry(field, entries, owner) for field in texts(message, 2)}


def reachable(table: dict[str, Any]) -> dict[str, Any]:
    """The messages of served definitions and what they refer to."""
    queue = [name for name in table if name in data.definitions()]
    out: dict[str, Any] = {}
    while queue:
        name = queue.pop()
        if name in out or name not in table:
            continue
        out[name] = table[name]
        queue.extend(kind.lstrip("[]{}^?") for _, kind in table[name].values())
    return dict(sorted(out.items()))


def main() -> None:
    """Read the binary named on the command line and write the table."""
    table: dict[str, Any] = {}
    for file in files(Path(sys.argv[1]).read_bytes()):
        table.update(messages(file))
    table = reachable(table)
    text = json.dumps(table, separators=(",", ":")).encode()
    OUT.write_bytes(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))
    print(f"{len(table)} messages, {OUT.stat().st_size} bytes")
    for name, fields in table.items():
        for field, kind in fields.values():
            if kind.startswith("^"):
                print("inline", name, field)
            elif name in data.definitions() and field not in data.definitions()[name].get("properties", {field: 0}):
                print("unknown to the schema:", name, field, kind)


if __name__ == "__main__":
    main()
