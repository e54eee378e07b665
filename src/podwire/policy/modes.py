"""Opens policy data planes by their names in :mod:`podwire.policy.registry`, and clears their state.

The module of a data plane has a class and a function ``clear``, which deletes the state that an earlier run left.
"""

from collections.abc import Callable

from podwire.dataplane.modes import RegisteredModes
from podwire.errors import KernelError, Unsupported
from podwire.kernel.features import Features
from podwire.kernel.netns import NetnsPath
from podwire.observe.log import Log
from podwire.policy.dataplane import PolicyDataPlane, PolicyFacts
from podwire.policy.registry import DATAPLANES, FEATURES


class PolicyModes(RegisteredModes[PolicyFacts, PolicyDataPlane]):
    """The data planes of one network namespace (None: that of this process)."""

    def __init__(self, netns: NetnsPath = None) -> None:
        super().__init__(DATAPLANES, netns)

    def open(self, name: str, facts: PolicyFacts) -> PolicyDataPlane:
        """Opens a data plane by its name; nothing is written yet.

        Raises: ConfigError for a name that is not in the registry; KernelError, Unsupported naming what is missing.
        """
        if name in FEATURES:
            answer = Features().probe(FEATURES[name])
            if answer.verdict == "no":
                raise Unsupported(answer.name, answer.minimum, answer.reason)
        return super().open(name, facts)


def open_dataplane(name: str, facts: PolicyFacts, netns: NetnsPath = None) -> PolicyDataPlane:
    """Opens a data plane by its name in a network namespace (None: that of this thread); nothing is written yet.

    Raises: ConfigError for a name that is not in the registry; KernelError, Unsupported naming what is missing.
    """
    return PolicyModes(netns).open(name, facts)


def clear_all(netns: NetnsPath = None) -> bool:
    """Deletes the state that an earlier run left in any mode; returns whether there was any.

    Raises: KernelError of the first mode that fails; the other modes are cleared.
    """
    registry, any_removed, failures = PolicyModes(netns), False, []
    for name in registry.names():
        try:
            any_removed = registry.clear(name) or any_removed
        except Unsupported:
            continue
        except KernelError as failure:
            failures.append(failure)
    if failures:
        raise failures[0]
    return any_removed


def clear_unused() -> None:
    """Deletes what an earlier run left on a node that no longer enforces policies, where new pods would have no rules.

    A failure is logged: a kernel without the subsystem has nothing to delete.
    """
    log = Log("policy")
    try:
        if clear_all():
            log.warning("removed the rules of policies: `parts` in the configuration does not name policy")
    except KernelError as problem:
        log.info("cannot look for the rules of policies that an earlier agent left", problem=problem)


def unavailable(mode: str, problem: tuple[str, KernelError] | None, lacks: Callable[[str], str]) -> str:
    """Why the configured mode cannot be used, and what ``mode`` does instead; empty when it is in use.

    ``problem`` has the configured mode and the failure, ``lacks`` returns what the kernel lacks of a feature.
    """
    if problem is None:
        return ""
    mode_in_settings, failure = problem
    missing = lacks(FEATURES[mode_in_settings]) if mode_in_settings in FEATURES else ""
    missing = missing or failure.detail or str(failure)
    if mode == "none":
        return f"policy: {missing}; pods that policies select are refused"
    return f"policy.mode {mode_in_settings}: {missing}; {mode} is used"
