"""The documents of the CNI specification: network configuration, result and error, in every version.

A :class:`CniResult` is written and read in the shape of the configuration's ``cniVersion``:

* 0.1.0, 0.2.0: ``ip4`` and ``ip6``, one address per family;
* 0.3.0, 0.3.1, 0.4.0: ``interfaces`` and ``ips``, each address with its ``version``;
* 1.0.0: the same without ``version``; 1.1.0: interfaces gain ``mtu``, routes ``mtu``, ``priority``, ``table``...

Fields that a version does not have are left out when a result is written (0.2.0: interfaces, further addresses).
Documents are read as Go reads them (:mod:`podwire.cni.gojson`).
Sources: CNI specification 1.1.0 section 5 and ``containernetworking/cni/pkg/types``; the errors go to standard output,
as libcni expects. Cost: one JSON decode and encode per request, some 20 microseconds.
"""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface
from typing import Any

import msgspec

from podwire.cni import gojson
from podwire.errors import CniError

VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
DEFAULT_VERSION = "0.1.0"
"""The version of a configuration without ``cniVersion``."""

OWN_TYPE = "podwire-cni"
"""The type of podwire's own plugin."""
CHAINED_TYPES = ("tuning", "bandwidth", "firewall")
"""The types of other chained plugins that podwire answers where the node has none."""
POD_ANNOTATIONS = "io.kubernetes.cri.pod-annotations"
"""The capability by which a runtime passes the annotations of a pod."""

INCOMPATIBLE_VERSION = 1
UNSUPPORTED_FIELD = 2
UNKNOWN_CONTAINER = 3
INVALID_ENVIRONMENT = 4
IO_FAILURE = 5
DECODING_FAILURE = 6
INVALID_CONFIG = 7
INVALID_NETNS = 8
TRY_LATER = 11
PLUGIN_NOT_AVAILABLE = 50
CHECK_FAILED = 100
INTERNAL = 999

Address = IPv4Address | IPv6Address


class Document(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, rename="camel", kw_only=True):
    """The settings that every CNI document shares."""


class Dns(Document, frozen=True):
    """Resolver settings."""

    nameservers: tuple[str, ...] = ()
    domain: str = ""
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


class CniRoute(Document, frozen=True):
    """A route inside the pod; ``gw`` empty means on link."""

    dst: str
    gw: str = ""
    mtu: int = 0
    advmss: int = 0
    priority: int = 0
    table: int | None = None
    scope: int | None = None


class CniInterface(Document, frozen=True):
    """A network interface of a result; an empty ``sandbox`` means an interface of the node."""

    name: str
    mac: str = ""
    sandbox: str = ""
    mtu: int = 0
    socket_path: str = ""
    pci_id: str = msgspec.field(default="", name="pciID")


class Ip(Document, frozen=True):
    """An address with its prefix; ``interface`` is an index into the result's interfaces."""

    address: str
    gateway: str = ""
    interface: int | None = None


class CniResult(Document, frozen=True):
    """The result of ADD."""

    interfaces: tuple[CniInterface, ...] = ()
    ips: tuple[Ip, ...] = ()
    routes: tuple[CniRoute, ...] = ()
    dns: Dns = Dns()


class PortMapping(Document, frozen=True):
    """One hostPort; ``host_ip`` empty means every address of the node."""

    host_port: int
    container_port: int
    protocol: str = "tcp"
    host_ip: str = msgspec.field(default="", name="hostIP")


class RuntimeDns(Document, frozen=True):
    """Resolver settings as the capability ``dns`` spells them."""

    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


class RuntimeConfig(Document, frozen=True):
    """The settings that the runtime adds to the configuration; settings that podwire does not use are left out."""

    port_mappings: tuple[PortMapping, ...] = ()
    ips: tuple[str, ...] = ()
    mac: str = ""
    dns: RuntimeDns = RuntimeDns()
    annotations: dict[str, str] = msgspec.field(default={}, name=POD_ANNOTATIONS)


class CniArgs(Document, frozen=True):
    """The settings that an orchestrator writes into ``args.cni`` of the configuration."""

    ips: tuple[str, ...] = ()
    mac: str = ""


class Args(Document, frozen=True):
    """The section ``args`` of the configuration."""

    cni: CniArgs = CniArgs()


class Ipam(Document, frozen=True):
    """The section ``ipam``; ``type`` is the plugin that assigns addresses, empty for podwire.

    ``routes`` are in the result when podwire is the IPAM plugin of another plugin.
    """

    type: str = ""
    routes: tuple[CniRoute, ...] = ()


class ValidAttachment(Document, frozen=True):
    """An attachment that garbage collection must keep."""

    container_id: str = msgspec.field(name="containerID")
    ifname: str


class NetConf(Document, frozen=True):
    """A plugin's configuration as the runtime sends it; fields that are not used are left out."""

    cni_version: str = DEFAULT_VERSION
    name: str = ""
    type: str = ""
    prev_result: dict[str, Any] | None = None
    runtime_config: RuntimeConfig = RuntimeConfig()
    args: Args = Args()
    ipam: Ipam = Ipam()
    valid_attachments: tuple[ValidAttachment, ...] | None = msgspec.field(
        default=None, name="cni.dev/valid-attachments"
    )
    attachments: tuple[ValidAttachment, ...] | None = msgspec.field(default=None, name="cni.dev/attachments")
    dns: Dns = Dns()
    disable_check: bool = False
    disable_gc: bool = msgspec.field(default=False, name="disableGC")
    policy: bool = False
    """Whether podwire-cni runs after another plugin that wires the pods, and only puts their policies in force."""

    @property
    def lends(self) -> bool:
        """Whether another plugin asks podwire for addresses only."""
        return self.ipam.type == OWN_TYPE and self.type not in ("", OWN_TYPE)

    @property
    def attachments_in_use(self) -> frozenset[tuple[str, str]] | None:
        """The (container, interface) pairs that garbage collection must keep; None when the runtime lists none."""
        valid = self.valid_attachments if self.valid_attachments is not None else self.attachments
        return None if valid is None else frozenset((a.container_id, a.ifname) for a in valid)


def at_least(version: str, minimum: str) -> bool:
    """Whether a version of the specification is ``minimum`` or later."""
    return VERSIONS.index(version) >= VERSIONS.index(minimum)


def decode_config(text: bytes) -> dict[str, Any]:
    """The configuration of a request as a decoded JSON object.

    Raises: CniError 6 when the text is not a JSON object.
    """
    try:
        document = msgspec.json.decode(text)
    except msgspec.DecodeError as problem:
        raise CniError(DECODING_FAILURE, "the network configuration is not JSON", str(problem)) from problem
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise CniError(DECODING_FAILURE, "the network configuration is not a JSON object")
    return document


def parse_config(document: dict[str, Any]) -> NetConf:
    """The configuration in a decoded JSON object; an empty ``cniVersion`` counts as absent.

    Raises: CniError 6 when a field has a wrong type, 1 for an unknown version.
    """
    try:
        conf = gojson.convert(document, NetConf)
    except msgspec.ValidationError as problem:
        raise CniError(
            DECODING_FAILURE, "a field of the network configuration has a wrong type", str(problem)
        ) from problem
    if not conf.cni_version:
        return msgspec.structs.replace(conf, cni_version=DEFAULT_VERSION)
    if conf.cni_version not in VERSIONS:
        raise CniError(
            INCOMPATIBLE_VERSION, f"incompatible CNI version {conf.cni_version!r}", f"supported: {', '.join(VERSIONS)}"
        )
    return conf


def render_result(result: CniResult, version: str) -> bytes:
    """The JSON of a result in the shape of ``version``."""
    if not at_least(version, "0.3.0"):
        return msgspec.json.encode(_render_two_families(result, version))
    body: dict[str, Any] = {"cniVersion": version}
    newest = at_least(version, "1.1.0")
    links = [_builtins(link) for link in result.interfaces]
    routes = [_builtins(route) for route in result.routes]
    if not newest:
        links = [{k: v for k, v in link.items() if k in ("name", "mac", "sandbox")} for link in links]
        routes = [{k: v for k, v in route.items() if k in ("dst", "gw")} for route in routes]
    ips = [_builtins(ip) for ip in result.ips]
    if not at_least(version, "1.0.0"):
        ips = [{"version": str(ip_interface(ip["address"]).version), **ip} for ip in ips]
    for name, value in (("interfaces", links), ("ips", ips), ("routes", routes)):
        if value:
            body[name] = value
    body["dns"] = _builtins(result.dns)
    return msgspec.json.encode(body)


def _render_two_families(result: CniResult, version: str) -> dict[str, Any]:
    body: dict[str, Any] = {"cniVersion": version}
    for family in (4, 6):
        first = next((ip for ip in result.ips if ip_interface(ip.address).version == family), None)
        if first is None:
            continue
        routes = [
            {"dst": route.dst, **({"gw": route.gw} if route.gw else {})}
            for route in result.routes
            if ip_interface(route.dst).version == family
        ]
        gateway = {"gateway": first.gateway} if first.gateway else {}
        body[f"ip{family}"] = {"ip": first.address, **gateway, **({"routes": routes} if routes else {})}
    body["dns"] = _builtins(result.dns)
    return body


def parse_result(document: dict[str, Any], fallback_version: str = DEFAULT_VERSION) -> CniResult:
    """The result in a document of any version, such as ``prevResult``.

    Raises: CniError 6 when the document does not have the shape of its version.
    """
    version = document.get("cniVersion") or fallback_version
    if version not in VERSIONS:
        raise CniError(INCOMPATIBLE_VERSION, f"prevResult has the incompatible CNI version {version!r}")
    try:
        if at_least(version, "0.3.0"):
            return gojson.convert(document, CniResult)
        return _parse_two_families(document)
    except msgspec.ValidationError as problem:
        raise CniError(DECODING_FAILURE, f"prevResult is not a result of CNI {version}", str(problem)) from problem


def _parse_two_families(document: dict[str, Any]) -> CniResult:
    result = gojson.convert(document, _TwoFamilies)
    entries = [entry for entry in (result.ip4, result.ip6) if entry is not None]
    return CniResult(
        ips=tuple(Ip(address=entry.ip, gateway=entry.gateway) for entry in entries),
        routes=tuple(route for entry in entries for route in entry.routes),
        dns=result.dns,
    )


class _Family(Document, frozen=True):
    """The address of a family in the oldest shape of a result."""

    ip: str
    gateway: str = ""
    routes: tuple[CniRoute, ...] = ()


class _TwoFamilies(Document, frozen=True):
    """The oldest shape of a result."""

    ip4: _Family | None = None
    ip6: _Family | None = None
    dns: Dns = Dns()


def render_error(failure: CniError, version: str) -> bytes:
    """The JSON of a failure, for standard output."""
    body: dict[str, Any] = {"cniVersion": version, "code": failure.code, "msg": failure.message}
    if failure.details:
        body["details"] = failure.details
    return msgspec.json.encode(body)


def render_versions(version: str) -> bytes:
    """The answer to VERSION."""
    return msgspec.json.encode({"cniVersion": version, "supportedVersions": VERSIONS})


def addresses_of(result: CniResult) -> tuple[Address, ...]:
    """The addresses of a result without their prefixes, in order."""
    return tuple(ip_address(ip.address.partition("/")[0]) for ip in result.ips)


def _builtins(document: Document) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.to_builtins(document)
    return value
