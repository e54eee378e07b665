"""The objects that mutations make: ``Object{spec: Object.spec{replicas: 1}}`` and ``JSONPatch{op: 'add', ...}``.

The checker knows them as messages with the fields that the expression itself gives them; what fits the schema of the
changed object is found when the mutation is applied. Source: ``k8s.io/apiserver/pkg/cel/mutation``.
"""

from podwire.embedded.apiserver.cel import messages, sources
from podwire.embedded.apiserver.cel.environment import MESSAGES
from podwire.embedded.apiserver.cel.expressions import CompileError, Expression

_ROOT, _PATCH = "Object", "JSONPatch"
_PATCH_FIELDS = {"op": "string", "path": "string", "from": "string", "value": "dyn"}
_WANTED = {"ApplyConfiguration": _ROOT, "JSONPatch": f"list({_PATCH})"}


def typed(source: str) -> str:
    """The expression with the names of messages in the place of the names of objects."""
    parts = sources.tokens(source)
    places = [(first, last, brace, _name(parts, first, last)) for first, last, brace in sources.type_names(parts)]
    fields: dict[str, dict[str, str]] = {_PATCH: dict(_PATCH_FIELDS)}
    for _, _, brace, name in places:
        if name == _ROOT or name.startswith(f"{_ROOT}."):
            given = fields.setdefault(name, {})
            given.update((parts[index], "dyn") for index in sources.field_names(parts, brace))
    for first, last, _, name in places:
        if name in fields:
            parts[first : last + 1] = [MESSAGES.declare(name.replace(".", "_"), fields[name]), *[""] * (last - first)]
    return "".join(parts)


def _name(parts: list[str], first: int, last: int) -> str:
    return "".join(part for part in parts[first : last + 1] if not part.isspace())


def compile_mutation(source: str, types: dict[str, str], patch_type: str) -> Expression:
    """The expression of a mutation: an object, or a list of JSON patch operations.

    Raises: CompileError.
    """
    try:
        expression = Expression(source, types, checked=typed(source))
    except CompileError as failure:
        raise CompileError(f"compilation failed: {failure}") from failure
    wanted, found = _WANTED[patch_type], messages.shown(expression.result)
    if found != wanted and not (patch_type == "JSONPatch" and found == "list(dyn)" and source.split() == ["[]"]):
        raise CompileError(f"must evaluate to {wanted} but got {found}")
    return expression
