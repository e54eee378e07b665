"""A cache of the compiled policies of one kind; an entry is valid until its policy changes."""

from collections.abc import Callable
from typing import Generic, TypeVar

from podwire.embedded.apiserver.admission.policies.definitions import BoundPolicy, PolicySpec
from podwire.embedded.apiserver.cel.conditions import ConditionError
from podwire.embedded.apiserver.cel.expressions import CompileError

Program = TypeVar("Program")


class CompiledPolicies(Generic[Program]):
    """Compiles each policy when it is first used."""

    def __init__(self, compile_spec: Callable[[PolicySpec], Program]) -> None:
        self._compile = compile_spec
        self._programs: dict[str, tuple[int, Program | str]] = {}

    def program(self, policy: BoundPolicy) -> Program | str:
        """The compiled policy, or the compile error."""
        known = self._programs.get(policy.name)
        if known is None or known[0] != policy.version:
            program: Program | str
            try:
                program = self._compile(policy.spec)
            except (CompileError, ConditionError) as failure:
                program = str(failure)
            known = self._programs[policy.name] = (policy.version, program)
        return known[1]
