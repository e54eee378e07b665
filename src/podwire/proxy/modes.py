"""Opens and clears data planes of Services by their names in :mod:`podwire.proxy.registry`."""

from collections.abc import Callable

from podwire.dataplane.modes import RegisteredModes
from podwire.errors import KernelError
from podwire.kernel.netns import NetnsPath
from podwire.model.wording import count
from podwire.proxy.dataplane import ServiceDataPlane
from podwire.proxy.registry import DATAPLANES, FEATURES
from podwire.proxy.servicemap import NodeFacts


class ServiceModes(RegisteredModes[NodeFacts, ServiceDataPlane]):
    """The data planes of one network namespace (None: that of this process)."""

    def __init__(self, netns: NetnsPath = None) -> None:
        super().__init__(DATAPLANES, netns)


def open_dataplane(name: str, facts: NodeFacts, netns: NetnsPath = None) -> ServiceDataPlane:
    """The data plane of that name in a network namespace (None: that of this thread).

    Raises: ConfigError for a name that is not in the registry; KernelError.
    """
    return ServiceModes(netns).open(name, facts)


def unavailable(mode: str, failure: KernelError, lacks: Callable[[str], str]) -> str:
    """Why a mode cannot be used; ``lacks`` returns what the kernel lacks of a feature, empty: nothing."""
    missing = lacks(FEATURES[mode]) if mode in FEATURES else ""
    return f"proxy.mode {mode}: {missing or failure.detail or failure}"


def hidden_clients(mode: str, policies: int) -> str:
    """A warning when policies see the node's address instead of the clients of Services; empty when they see
    clients."""
    if mode != "userspace" or not policies:
        return ""
    verb = "see" if policies > 1 else "sees"
    return (
        f"proxy.mode userspace: {count(policies, 'policy', 'policies')} {verb} the node in place of pods that connect "
        "through Services; use another mode"
    )
