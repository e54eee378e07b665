"""The chained plugin ``tuning``: sysctls, hardware address, MTU and reception modes of a pod's interface.

It runs behind the plugin that wires the pod. Where the runtime's directory has no such program, podwire's is installed
under this name, and the agent answers it. ADD keeps what it changes of the device in the ledger, and DEL restores that:
the namespace of a pod may outlive its attachment. Sysctls are not restored. Source: plugins/meta/tuning of
containernetworking.
"""

from typing import Any, Protocol

import msgspec

from podwire.cni import gojson, spec
from podwire.cni.chain.facts import Facts, previous, stale
from podwire.cni.protocol import CniRequest
from podwire.cni.spec import Document
from podwire.errors import CniError, KernelError, KernelNotFound
from podwire.kernel.devicetuning import DeviceSettings

TYPE = "tuning"
_PREFIX = "net/"


class TunedDevice(Document, frozen=True):
    """The settings of a device; empty, 0 and None are not set."""

    mac: str = ""
    mtu: int = 0
    promisc: bool | None = None
    allmulti: bool | None = None


class TuningArgs(Document, frozen=True):
    """``args`` of the configuration, with the settings of an orchestrator."""

    cni: TunedDevice = TunedDevice()


class TuningConf(TunedDevice, frozen=True):
    """The configuration of the plugin; sysctls by their names."""

    sysctl: dict[str, str] = {}
    tx_queue_length: int = msgspec.field(default=0, name="txQLen")
    args: TuningArgs = TuningArgs()
    runtime_config: TunedDevice = TunedDevice()


class PodDevices(Protocol):
    """The devices and sysctls of pods; all methods raise KernelError."""

    def read(self, netns: str, name: str) -> DeviceSettings: ...

    def write(self, netns: str, name: str, settings: DeviceSettings) -> None: ...

    def read_sysctl(self, netns: str, path: str) -> str: ...

    def write_sysctl(self, netns: str, path: str, value: str) -> None: ...


class TuningPlugin:
    """Answers requests of the plugin."""

    def __init__(self, devices: PodDevices, facts: Facts) -> None:
        self._devices = devices
        self._facts = facts

    def handle(self, request: CniRequest, netns: str) -> bytes:
        """Handles a request and returns the text for its standard output; the namespace was checked.

        Raises: CniError.
        """
        conf = _conf(request)
        try:
            match request.command:
                case "ADD":
                    return self._add(request, netns, conf)
                case "CHECK":
                    self._check(request, netns, conf)
                case "DEL":
                    self._delete(request, netns)
                case "GC":
                    for name in stale(self._facts, TYPE, request):
                        self._facts.remember(name, b"")
        except KernelError as failure:
            raise CniError(
                spec.INTERNAL, f"cannot tune {request.key.ifname} in {request.netns}", str(failure)
            ) from None
        return b""

    def _add(self, request: CniRequest, netns: str, conf: TuningConf) -> bytes:
        version, name = request.conf.cni_version, request.key.ifname
        result = previous(request)
        for path, value in _sysctls(conf).items():
            self._devices.write_sysctl(netns, path, value)
        device = _device(conf, request)
        if device != DeviceSettings():
            before = self._devices.read(netns, name)
            changed = {field: getattr(before, field) for field in device.__struct_fields__ if _is_set(device, field)}
            self._facts.remember(_fact(request), msgspec.json.encode(DeviceSettings(**changed)))
            self._devices.write(netns, name, device)
        if device.mac:
            result = msgspec.structs.replace(
                result,
                interfaces=tuple(
                    msgspec.structs.replace(interface, mac=device.mac)
                    if interface.name == name and interface.sandbox
                    else interface
                    for interface in result.interfaces
                ),
            )
        return spec.render_result(result, version)

    def _check(self, request: CniRequest, netns: str, conf: TuningConf) -> None:
        previous(request)
        for path, value in _sysctls(conf).items():
            actual = self._devices.read_sysctl(netns, path)
            if actual.split() != value.split():
                raise CniError(spec.CHECK_FAILED, f"sysctl {path} is {actual!r}", f"expected {value!r}")
        device, actual_device = _device(conf, request), self._devices.read(netns, request.key.ifname)
        for field in device.__struct_fields__:
            expected, actual_value = getattr(device, field), getattr(actual_device, field)
            if _is_set(device, field) and expected != actual_value:
                problem = f"{field} of {request.key.ifname} is {actual_value}"
                raise CniError(spec.CHECK_FAILED, problem, f"expected {expected}")

    def _delete(self, request: CniRequest, netns: str) -> None:
        original = self._facts.fact(_fact(request))
        if not original:
            return
        try:
            if netns:
                self._devices.write(netns, request.key.ifname, msgspec.json.decode(original, type=DeviceSettings))
        except KernelNotFound:
            pass  # The device went with its namespace, or with the plugin that made it.
        self._facts.remember(_fact(request), b"")


def _fact(request: CniRequest) -> str:
    return f"tuning {request.key}"


def _conf(request: CniRequest) -> TuningConf:
    document: dict[str, Any] = request.document
    try:
        conf = gojson.convert(document, TuningConf)
    except msgspec.ValidationError as problem:
        raise CniError(spec.DECODING_FAILURE, "the configuration of tuning is not valid", str(problem)) from problem
    if conf.tx_queue_length and request.command == "ADD":
        raise CniError(spec.UNSUPPORTED_FIELD, f"podwire does not support txQLen: {conf.tx_queue_length}")
    return conf


def _is_set(settings: TunedDevice | DeviceSettings, field: str) -> bool:
    """Whether a configuration sets a field: as in Go, the empty value of a type does not."""
    return bool(getattr(settings, field))


def _device(conf: TuningConf, request: CniRequest) -> DeviceSettings:
    """The settings, of which those of the runtime come first, then those of ``args`` and of ``CNI_ARGS``."""
    sources = (conf.runtime_config, conf.args.cni, TunedDevice(mac=request.args.get("MAC", "")), conf)
    chosen: dict[str, Any] = {}
    for field in TunedDevice.__struct_fields__:
        source = next((source for source in sources if _is_set(source, field)), None)
        if source is not None:
            chosen[field] = getattr(source, field)
    settings = DeviceSettings(**chosen)
    return msgspec.structs.replace(settings, mac=settings.mac.lower())


def _sysctls(conf: TuningConf) -> dict[str, str]:
    """The sysctls by their paths.

    Raises: CniError when one is not of the network.
    """
    paths = {name: name if "/" in name else name.replace(".", "/") for name in conf.sysctl}
    for name, path in paths.items():
        if not path.startswith(_PREFIX) or ".." in path.split("/"):
            raise CniError(spec.INVALID_CONFIG, f"invalid net sysctl key: {name!r}", "expected a name below net")
    return {paths[name]: value for name, value in conf.sysctl.items()}
