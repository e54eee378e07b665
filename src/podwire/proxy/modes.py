"""Opens and clears data planes of Services by their names in :mod:`podwire.proxy.registry`."""

from podwire.dataplane.modes import RegisteredModes
from podwire.kernel.netns import NetnsPath
from podwire.proxy.dataplane import ServiceDataPlane
from podwire.proxy.registry import DATAPLANES
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
