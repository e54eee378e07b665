"""Extracts the protobuf field tables of the Kubernetes API from its ``generated.proto`` files.

Input: source trees of ``k8s.io/api`` and ``k8s.io/apimachinery`` (release v0.36), whose files say which field has which
number and type. Names are those of the OpenAPI definitions, so that the decoder finds a message by the schema's own
table.

Output: ``protobuf.json.xz`` in ``src/podwire/embedded/apiserver/schema``, ``{message: {number: [name, type]}}``.
A type is ``int``, ``bool``, ``double``, ``string``, ``bytes`` or a message; before it ``[]`` for a list, ``{}`` for a
map, ``^`` for a message whose fields stand in the one around it, ``?`` for a field whose zero is a value.

Usage: ``python scripts/make_protobuf.py path/to/api path/to/apimachinery``
"""

import json
import lzma
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from podwire.embedded.apiserver.schema import data

OUT = Path(__file__).parent.parent / "src" / "podwire" / "embedded" / "apiserver" / "schema" / "protobuf.json.xz"
PACKAGE = re.compile(r"^package (\S+);", re.MULTILINE)
MESSAGE = re.compile(r"^message (\w+) \{(.*?)^\}", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^  (optional|repeated|map<string, ([\w.]+)>)(?: ([\w.]+))? (\w+) = (\d+);", re.MULTILINE)
SCALARS = {"bool": "bool", "bytes": "bytes", "double": "double", "int32": "int", "int64": "int", "string": "string"}

# Optional numbers, flags and texts that Go holds as pointers: there an encoded zero was set by somebody.
_POINTER_NAMES = """
    activeDeadlineSeconds adminAccess allNodes allocateLoadBalancerNodePorts allowMultipleAllocations
    allowPrivilegeEscalation allowVolumeExpansion attachRequired automountServiceAccountToken
    averageUtilization backoffLimit backoffLimitPerIndex bindsToNode blockOwnerDeletion bool
    borrowingLimitPercent completions controller currentCPUUtilizationPercentage defaultMode
    deletionGracePeriodSeconds enableServiceLinks expirationSeconds failedJobsHistoryLimit fsGroup
    gracePeriodSeconds hostUsers immutable int leaseDurationSeconds leaseTransitions lendablePercent
    manualSelector maxFailedIndexes minReplicas mode nominalConcurrencyShares observedGeneration optional
    orphanDependents parallelism partition perDeviceNodeSelection podInfoOnMount port priority privileged
    progressDeadlineSeconds readOnlyRootFilesystem ready replicas requiresRepublish revisionHistoryLimit
    runAsGroup runAsNonRoot runAsUser serving setHostnameAsFQDN shareProcessNamespace
    stabilizationWindowSeconds startingDeadlineSeconds storageCapacity storageClassName
    successfulJobsHistoryLimit suspend targetCPUUtilizationPercentage terminating
    terminationGracePeriodSeconds tolerationSeconds ttlSecondsAfterFinished weight
"""
POINTERS = frozenset(_POINTER_NAMES.split())


def definition_name(name: str, package: str) -> str:
    """``.k8s.io.api.core.v1.Pod`` as the OpenAPI definitions name it; a name without dots is of the package."""
    full = name if "." in name else f"{package}.{name}"
    return "io.k8s." + full.lstrip(".").removeprefix("k8s.io.")


def field_entry(match: re.Match[str], package: str, owner: str) -> list[str]:
    """Name and type of one field."""
    rule, value, target, name, _ = match.groups()
    schema = data.definitions().get(owner, {})
    known = schema.get("properties", {})
    name = next((key for key in known if key.lower() == name.lower()), name)
    target = value or target
    kind = SCALARS.get(target) or definition_name(target, package)
    if value:
        return [name, "{}" + kind]
    if rule == "repeated":
        return [name, "[]" + kind]
    if target in SCALARS:
        keep = "?" if name in POINTERS or name in schema.get("required", ()) else ""
        return [name, keep + kind]
    inline = known and name not in known
    return [name, ("^" if inline else "") + kind]


def messages(text: str) -> Iterator[tuple[str, dict[int, list[str]]]]:
    """Every message of a file with its fields by number."""
    found = PACKAGE.search(text)
    package = found.group(1) if found else ""
    for name, body in MESSAGE.findall(text):
        owner = definition_name(name, package)
        yield owner, {int(match.group(5)): field_entry(match, package, owner) for match in FIELD.finditer(body)}


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
    """Read the trees named on the command line and write the table."""
    table: dict[str, Any] = {}
    for tree in sys.argv[1:]:
        for file in sorted(Path(tree).rglob("generated.proto")):
            table.update(messages(file.read_text()))
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
