"""Child processes of backends: they run as the plan says, and hold the values that the plan has for them.

A child process gets its values twice: before routes lead to it, if it runs already, and after the plan's child
processes run. A child process that the new plan does not have gets its last values once more before its devices go,
so that it forwards packets until then.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from podwire.errors import ConfigError
from podwire.observe.log import Log
from podwire.routing.plan import Plan
from podwire.runtime.children import ChildEvent
from podwire.runtime.program import Child
from podwire.state.value import StateValue


class ChildPrograms(Protocol):
    """Runs the child processes of backends, as ``runtime.children`` does."""

    async def apply(self, desired: Iterable[Child]) -> None:
        """Makes exactly these child processes run.

        Raises: OSError; ConfigError when a program refuses its files.
        """
        ...


class ValueFollower(Protocol):
    """What the programs need of the router's machine."""

    def follow_values(self, before: Sequence[StateValue], values: Sequence[StateValue]) -> Sequence[str]:
        """Makes the kernel hold ``values``, when it holds ``before`` unchanged; returns the failures as text."""
        ...


class BackendPrograms:
    """The child processes of one node's backends; ``ended`` is called after one of them ended.

    ``held`` is, in each method, what the kernel holds of the plan's values besides those of child processes.
    """

    def __init__(self, machine: ValueFollower, ended: Callable[[], None]) -> None:
        self.children: ChildPrograms | None = None
        """Runs the child processes, whose files are in the run directory; None runs none of them."""
        self.problem = ""
        """Why the child processes do not run or do not hold their values, by the last run."""
        self._machine = machine
        self._ended = ended
        self._log = Log("routing")

    async def run(self, plan: Plan, held: tuple[StateValue, ...]) -> None:
        """Runs and configures the child processes of the plan; :attr:`problem` has the outcome."""
        if self.children is None:
            return
        try:
            await self.children.apply(plan.children)
        except (OSError, ConfigError) as failure:
            self.problem = f"cannot run the programs of routing: {failure}"
        else:
            self.problem = self.hold_values(plan, held)

    def hold_values(self, plan: Plan, held: tuple[StateValue, ...]) -> str:
        """Gives the child processes that run the values of the plan; returns the failures."""
        if self.children is None or not plan.program_values:
            return ""
        return "; ".join(self._machine.follow_values(held, (*held, *plan.program_values)))

    def renew_ending(self, before: Plan | None, plan: Plan, held: tuple[StateValue, ...]) -> None:
        """Gives the child processes that the new plan does not have the values of the plan ``before`` once more."""
        if self.children is None or before is None:
            return
        remaining = {type(value) for value in plan.program_values}
        if ending := [value for value in before.program_values if type(value) not in remaining]:
            self._machine.follow_values(held, (*held, *ending))

    def note_child(self, event: ChildEvent) -> None:
        """Logs an event of a child process; one that is started again has to be configured again."""
        if event.event == "ended":
            self._log.warning("child process ended and is started again", name=event.name, pid=event.pid)
            self._ended()
        else:
            self._log.info("adopted the child process of an earlier agent", name=event.name, pid=event.pid)
