"""The plugin ``loopback``, which brings up the device ``lo`` of a pod.

Container runtimes before containerd 2.0 run it beside the network configuration, and start no pod without it. Where the
runtime's directory has no such program, podwire's program is installed under this name, and the agent answers it. It
keeps no state: each request looks at the pod's namespace. Source: plugins/main/loopback of containernetworking.
"""

from typing import Protocol

from podwire.cni import spec
from podwire.cni.protocol import CniRequest
from podwire.errors import CniError, KernelError, KernelNotFound

TYPE = "loopback"
_ADDRESSES = ("127.0.0.1/8", "::1/128")


class LoopbackDevices(Protocol):
    """The devices ``lo`` of pods."""

    def set_up(self, netns: str, *, up: bool) -> None:
        """Brings the device up or down.

        Raises: KernelError.
        """
        ...

    def addresses(self, netns: str) -> tuple[str, ...]:
        """The addresses of the device with their prefixes; none while it is down.

        Raises: KernelError.
        """
        ...


def is_for(request: CniRequest) -> bool:
    """Whether the runtime executed the program as ``loopback``."""
    return request.conf.type == TYPE


def handle(request: CniRequest, netns: str, devices: LoopbackDevices) -> bytes:
    """Handles a request and returns the text for its standard output; the namespace was checked.

    Raises: CniError.
    """
    try:
        if request.command == "ADD":
            devices.set_up(netns, up=True)
            return _result(request, devices.addresses(netns))
        if request.command == "DEL" and netns:
            _take_down(netns, devices)
        if request.command == "CHECK" and not devices.addresses(netns):
            raise CniError(spec.CHECK_FAILED, f"lo is down in {request.netns}")
    except KernelError as failure:
        raise CniError(spec.INTERNAL, f"cannot change lo in {request.netns}", str(failure)) from failure
    return b""


def _take_down(netns: str, devices: LoopbackDevices) -> None:
    try:
        devices.set_up(netns, up=False)
    except KernelNotFound:
        pass  # The namespace is gone.


def _result(request: CniRequest, addresses: tuple[str, ...]) -> bytes:
    """The result of an earlier plugin of the list, else one with ``lo``."""
    version = request.conf.cni_version
    if request.conf.prev_result is not None:
        return spec.render_result(spec.parse_result(request.conf.prev_result, version), version)
    own = [address for address in _ADDRESSES if address in addresses]
    device = spec.CniInterface(name="lo", mac="00:00:00:00:00:00", sandbox=request.netns)
    ips = tuple(spec.Ip(address=address, interface=0) for address in own)
    return spec.render_result(spec.CniResult(interfaces=(device,), ips=ips), version)
