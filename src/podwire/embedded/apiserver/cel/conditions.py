"""Match conditions of webhooks and policies.

When a condition is false, the webhook or policy does not apply to the request. When no condition is false but the
evaluation of one fails, the failure policy decides. Source:
``k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions``.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from podwire.embedded.apiserver.cel import requests
from podwire.embedded.apiserver.cel.expressions import Check, CompileError, EvaluationError, Expression, compiled
from podwire.errors import PodwireError


class ConditionError(PodwireError):
    """No condition is false, and the evaluation of at least one failed."""


def compile_conditions(conditions: Iterable[Mapping[str, Any]], *, params: bool) -> tuple[Expression, ...]:
    """The expressions of conditions; ``params`` tells whether they may use parameters.

    Raises: ConditionError for one that does not compile.
    """
    variables = requests.variables(params=params)
    try:
        return tuple(compiled(str(condition["expression"]).strip(), variables, "bool") for condition in conditions)
    except CompileError as failure:
        raise ConditionError(str(failure)) from failure


def failure_of(expression: Expression, failure: EvaluationError) -> str:
    """The words for an evaluation that failed."""
    return f"expression '{expression.source}' resulted in error: {failure}"


def all_hold(conditions: Sequence[Expression], values: Mapping[str, Any], decide: Check, *, ignore: bool) -> bool:
    """Whether every condition is true; with ``ignore``, a condition that cannot be evaluated is like a false one.

    Raises: ConditionError.
    """
    failures = []
    for condition in conditions:
        try:
            if condition.evaluate(values, decide) is False:
                return False
        except EvaluationError as failure:
            failures.append(failure_of(condition, failure))
    if failures and not ignore:
        raise ConditionError(failures[0] if len(failures) == 1 else f"[{', '.join(failures)}]")
    return not failures
