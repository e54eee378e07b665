"""The objects that mutations make: ``Object{spec: Object.spec{replicas: 1}}`` and ``JSONPatch{op: 'add', ...}``.

The checker knows them as messages with the fields that the expression itself names. They are compared with the schema
of the changed object when the mutation is applied. Source: ``k8s.io/apiserver/pkg/cel/mutation``.
"""

from podwire.embedded.apiserver.cel import messages, sources
from podwire.embedded.apiserver.cel.environment import MESSAGES
from podwire.embedded.apiserver.cel.expressions import CompileError, Expression

_ROOT, _PATCH = "Object", "JSONPatch"
_PATCH_FIELDS = {"op": "string", "path": "string", "from": "string", "value": "dyn"}
_RESULT_TYPES = {"ApplyConfiguration": _ROOT, "JSONPatch": f"list({_PATCH})"}


def typed(source: str) -> str:
    """The expression with the names of objects replaced by the names of messages."""
    token_list = sources.tokens(source)
    objects = [
        (first, last, brace, _name(token_list, first, last)) for first, last, brace in sources.type_names(token_list)
    ]
    fields: dict[str, dict[str, str]] = {_PATCH: dict(_PATCH_FIELDS)}
    for _, _, brace, name in objects:
        if name == _ROOT or name.startswith(f"{_ROOT}."):
            declared = fields.setdefault(name, {})
            declared.update((token_list[index], "dyn") for index in sources.field_names(token_list, brace))
    for first, last, _, name in objects:
        if name in fields:
            token_list[first : last + 1] = [
                MESSAGES.declare(name.replace(".", "_"), fields[name]),
                *[""] * (last - first),
            ]
    return "".join(token_list)


def _name(token_list: list[str], first: int, last: int) -> str:
    return "".join(token for token in token_list[first : last + 1] if not token.isspace())


def compile_mutation(source: str, types: dict[str, str], patch_type: str) -> Expression:
    """The expression of a mutation: an object, or a list of JSON patch operations.

    Raises: CompileError.
    """
    try:
        expression = Expression(source, types, checked=typed(source))
    except CompileError as failure:
        raise CompileError(f"compilation failed: {failure}") from failure
    expected, actual = _RESULT_TYPES[patch_type], messages.shown(expression.result)
    if actual != expected and not (patch_type == "JSONPatch" and actual == "list(dyn)" and source.split() == ["[]"]):
        raise CompileError(f"must evaluate to {expected} but got {actual}")
    return expression
