"""The types of whole objects as the API publishes them: for the type checking of policies.

Source: ``k8s.io/apiserver/pkg/cel/openapi``.
"""

from functools import lru_cache

from podwire.embedded.apiserver.cel.environment import MESSAGES
from podwire.embedded.apiserver.cel.values import escaped
from podwire.embedded.apiserver.schema.data import INT_OR_STRING, SchemaNode, object_meta

_SCALARS = {
    "string": "string", "integer": "int", "number": "double", "boolean": "bool", INT_OR_STRING: "dyn",
    "quantity": "dyn",
}  # fmt: skip
_FORMATS = {"date-time": "timestamp", "date": "timestamp", "duration": "duration", "byte": "bytes"}


@lru_cache(maxsize=200)
def type_of(root: SchemaNode, kind: str) -> str:
    """The type of the objects of a kind, whose name error messages show."""
    known: dict[str, str] = {}
    fields = _fields(root, known, ())
    return MESSAGES.declare(
        kind, {**fields, "apiVersion": "string", "kind": "string", "metadata": _type(object_meta(), "meta", known, ())}
    )


def _fields(node: SchemaNode, known: dict[str, str], within: tuple[str, ...]) -> dict[str, str]:
    types = {escaped(name): _type(sub, name, known, within) for name, sub in node.properties.items()}
    return {name: text for name, text in types.items() if text}


def _type(node: SchemaNode, label: str, known: dict[str, str], within: tuple[str, ...]) -> str:
    """The type; empty for values that expressions cannot use, ``dyn`` where a type holds itself."""
    if node.name in within:
        return "dyn"
    if node.name not in known:
        inner = (*within, node.name) if node.name else within
        text = _published_name(node, node.name.rpartition(".")[2] or label.replace("-", "_"), known, inner)
        if not node.name:
            return text
        known[node.name] = text
    return known[node.name]


def _published_name(node: SchemaNode, label: str, known: dict[str, str], within: tuple[str, ...]) -> str:
    if node.type == "array":
        items = _type(node.items, label, known, within)
        return f"list({items})" if items else ""
    if node.type == "object":
        if node.additional is not None:
            held = _type(node.additional, label, known, within)
            return f"map(string,{held})" if held else ""
        return MESSAGES.declare(label, _fields(node, known, within))
    if node.type == "string":
        return _FORMATS.get(node.format, "string")
    return _SCALARS.get(node.type, "")
