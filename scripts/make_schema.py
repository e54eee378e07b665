"""Reduces the OpenAPI definitions of Kubernetes to what the embedded API serves.

Input: the ``_definitions.json`` of the Python package ``kubernetes-validate`` (wheel 1.36), which holds the
definitions that the Kubernetes 1.36 API server publishes, rewritten for a JSON Schema validator: types doubled
with ``null``, references to ``$defs``, and ``enum`` on apiVersion and kind. Those three are undone here.

Output: ``types.json.xz`` (structure) and ``descriptions.json.xz`` (prose, wanted by ``kubectl explain`` alone,
so that a server which nobody asks never holds it) in ``src/podwire/embedded/apiserver/schema``.

Usage: ``python scripts/make_schema.py path/to/v1.36.0-local/_definitions.json``
"""

import json
import lzma
import sys
from pathlib import Path
from typing import Any

from podwire.embedded.apiserver import kinds

OUT = Path(__file__).parent.parent / "src" / "podwire" / "embedded" / "apiserver" / "schema"
PREFIX = "#/$defs/"
INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
ALWAYS = (
    "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Status",
    "io.k8s.api.autoscaling.v1.Scale",
    "io.k8s.api.policy.v1.Eviction",
    "io.k8s.api.core.v1.Binding",
    "io.k8s.api.authentication.v1.TokenRequest",
)
# Defaults that the published schema carries and the source left out; keys of associative lists need them.
DEFAULTS = {
    ("io.k8s.api.core.v1.ContainerPort", "protocol"): "TCP",
    ("io.k8s.api.core.v1.ServicePort", "protocol"): "TCP",
}


def reduce(node: Any) -> Any:
    """The node in the form the API publishes, without descriptions."""
    if isinstance(node, list):
        return [reduce(item) for item in node]
    if not isinstance(node, dict):
        return node
    out: dict[str, Any] = {}
    for key, value in node.items():
        if key == "description" and isinstance(value, str):
            continue
        if key == "type" and isinstance(value, list):
            out[key] = next(name for name in value if name != "null")
        elif key == "$ref":
            out[key] = value.removeprefix(PREFIX)
        elif key == "properties":
            out[key] = {name: reduce(sub) for name, sub in value.items()}
        else:
            out[key] = reduce(value)
    return out


def definition(name: str, source: dict[str, Any]) -> dict[str, Any]:
    """One reduced definition, with the special scalar types and lost defaults restored."""
    if name == INT_OR_STRING:
        return {"type": "string", "format": "int-or-string"}
    if name == QUANTITY:
        return {"oneOf": [{"type": "string"}, {"type": "number"}]}
    out: dict[str, Any] = reduce(source)
    properties = out.get("properties", {})
    for key in ("apiVersion", "kind"):
        properties.get(key, {}).pop("enum", None)
    for (owner, field), value in DEFAULTS.items():
        if owner == name:
            properties[field]["default"] = value
    return out


def references(node: Any) -> set[str]:
    """Names of all definitions that the reduced node refers to."""
    if isinstance(node, list):
        return {name for item in node for name in references(item)}
    if not isinstance(node, dict):
        return set()
    found = {name for value in node.values() for name in references(value)}
    if isinstance(node.get("$ref"), str):
        found.add(node["$ref"])
    return found


def served() -> set[tuple[str, str, str]]:
    """Group, version and kind of everything the registry serves, with subresources and lists."""
    wanted: set[tuple[str, str, str]] = set()
    for kind in kinds.KINDS.values():
        wanted.add((kind.group, kind.version, kind.kind))
        wanted.add((kind.group, kind.version, kind.kind + "List"))
        wanted.update((sub.group, sub.version, sub.kind) for sub in kind.subresources)
    return wanted


def select(source: dict[str, Any]) -> dict[str, Any]:
    """The reduced definitions of what is served and of all that these refer to."""
    wanted = served()
    queue = list(ALWAYS)
    for name, body in source.items():
        gvks = body.get("x-kubernetes-group-version-kind", ())
        if any((gvk["group"], gvk["version"], gvk["kind"]) in wanted for gvk in gvks):
            queue.append(name)
    out: dict[str, Any] = {}
    while queue:
        name = queue.pop()
        if name not in out:
            out[name] = definition(name, source[name])
            queue.extend(references(out[name]))
    return dict(sorted(out.items()))


def prose(source: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Per definition its description and those of its fields: ``{name: [text, {field: text}]}``."""
    return {
        name: [
            source[name].get("description", ""),
            {
                field: sub["description"]
                for field, sub in source[name].get("properties", {}).items()
                if "description" in sub
            },
        ]
        for name in names
    }


def write(name: str, value: Any) -> None:
    """Write one compressed JSON file, byte-identical for equal input."""
    text = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    data = lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)
    (OUT / name).write_bytes(data)
    print(f"{name}: {len(data)} bytes ({len(text)} uncompressed)")


def main() -> None:
    """Read the source named on the command line and write both files."""
    source = json.loads(Path(sys.argv[1]).read_text())["$defs"]
    types = select(source)
    write("types.json.xz", types)
    write("descriptions.json.xz", prose(source, list(types)))
    print(f"{len(types)} definitions")


if __name__ == "__main__":
    main()
