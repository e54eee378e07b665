"""Flannel's configuration ``net-conf.json`` as settings of podwire (pure).

The file has the pod networks of the cluster and the backend. Its keys may be written in upper and lower case, as Go's
JSON has it. What podwire cannot do is refused with the path of the field, never ignored: a cluster that silently had
another port or other sizes of subnets would lose packets. Source: Flannel's documentation, configuration and backends.
"""

from collections.abc import Callable, Mapping
from ipaddress import ip_network
from typing import Any

import msgspec

from podwire.errors import ConfigError

_NODE_CIDRS = (
    "the node CIDRs come from the Nodes (spec.podCIDRs): set nodeCIDRMasks of podwire controller, or "
    "--node-cidr-mask-size of kube-controller-manager, and remove this field"
)
_SUBNETS = ("SubnetLen", "SubnetMin", "SubnetMax", "IPv6SubnetLen", "IPv6SubnetMin", "IPv6SubnetMax")
_VXLAN_OVERHEAD = {4: 50, 6: 70}
_PORT = 8472


class FlannelConf(msgspec.Struct, frozen=True):
    """The settings: pod networks of the cluster, IPv4 first, and keys of the section ``routing``."""

    networks: tuple[str, ...]
    routing: Mapping[str, Any]


class _Object:
    """One object of the file; fields are taken one by one, and those that are left over are refused."""

    def __init__(self, document: object, source: str, path: str) -> None:
        if not isinstance(document, dict):
            raise ConfigError(source, path, f"expected an object, not {type(document).__name__}")
        self._source = source
        self._path = path
        self._fields: dict[str, tuple[str, object]] = {}
        for name, value in document.items():
            if name.lower() in self._fields:
                other = self._fields[name.lower()][0]
                raise ConfigError(source, self.path(name), f"is the same field as {other}")
            self._fields[name.lower()] = name, value

    def path(self, name: str) -> str:
        """The path of a field."""
        return f"{self._path}.{name}" if self._path else name

    def take(self, name: str, kind: type | None, default: Any) -> Any:
        """The value of a field, which has to be of the type ``kind`` (None: any); ``default`` where it is missing.

        Raises: ConfigError.
        """
        written, value = self._fields.pop(name.lower(), (name, default))
        if kind is not None and type(value) is not kind:
            word = {bool: "true or false", int: "a number", str: "a text"}[kind]
            raise ConfigError(self._source, self.path(written), f"expected {word}, not {value!r}")
        return value

    def refuse(self, name: str, reason: str, *harmless: object) -> None:
        """Refuses a field unless it is missing or has a harmless value."""
        if name.lower() in self._fields:
            written, value = self._fields.pop(name.lower())
            if value not in harmless:
                raise ConfigError(self._source, self.path(written), reason)

    def error(self, name: str, problem: str) -> ConfigError:
        """An error about a field."""
        return ConfigError(self._source, self.path(name), problem)

    def finish(self) -> None:
        """Refuses all fields that were not taken."""
        for written, _ in self._fields.values():
            raise ConfigError(self._source, self.path(written), "is not a field of net-conf.json that podwire knows")


def parse_conf(text: str | bytes, source: str) -> FlannelConf:
    """The settings in the text of a file ``net-conf.json``.

    Raises: ConfigError naming the file and the field.
    """
    try:
        document = msgspec.json.decode(text)
    except msgspec.DecodeError as failure:
        raise ConfigError(source, "", f"not JSON: {failure}") from failure
    conf = _Object(document, source, "")
    networks = []
    for name, version, switch in (("Network", 4, "EnableIPv4"), ("IPv6Network", 6, "EnableIPv6")):
        if conf.take(switch, bool, version == 4):
            networks.append(_network(conf, name, version))
        else:
            conf.refuse(name, f"{switch} is not true", "")
    if not networks:
        raise conf.error("EnableIPv4", "neither IPv4 nor IPv6 is enabled")
    conf.take("EnableNFTables", bool, False)
    for name in _SUBNETS:
        conf.refuse(name, _NODE_CIDRS, "", 0)
    backend = conf.take("Backend", None, None)
    conf.finish()
    if backend is None:
        raise conf.error("Backend", f"is missing, and Flannel then uses udp; write the Type, one of {_types()}")
    version = 6 if ":" in networks[0] else 4
    return FlannelConf(tuple(networks), _routing(_Object(backend, source, "Backend"), version))


def _network(conf: _Object, name: str, version: int) -> str:
    text = conf.take(name, str, "")
    try:
        network = ip_network(text)
    except ValueError as failure:
        problem = str(failure) if text else "is missing"
        raise conf.error(name, f"{problem}; expected an IPv{version} network") from failure
    if network.version != version:
        raise conf.error(name, f"{text} is not an IPv{version} network")
    return str(network)


def _routing(backend: _Object, version: int) -> dict[str, Any]:
    kind = backend.take("Type", str, "")
    read = _READERS.get(kind)
    if read is None:
        raise backend.error("Type", f"{kind!r} cannot be taken over; expected one of {_types()}")
    routing = read(backend, version)
    backend.finish()
    return routing


def _vxlan(backend: _Object, version: int) -> dict[str, Any]:
    backend.refuse("GBP", "podwire sends no group policy in VXLAN headers", False)
    backend.refuse("Learning", "podwire has an entry for each node, and its device learns none", False)
    backend.refuse("MacPrefix", "the hardware address of podwire's device follows from the name of the node", "")
    mtu = backend.take("MTU", int, 0)
    return {
        "backend": "vxlan",
        "vni": backend.take("VNI", int, 1),
        "port": backend.take("Port", int, 0) or _PORT,
        "directRouting": backend.take("DirectRouting", bool, False),
    } | ({"mtu": mtu - _VXLAN_OVERHEAD[version]} if mtu else {})


def _host_gw(_backend: _Object, _version: int) -> dict[str, Any]:
    return {"backend": "hostgw"}


def _ipip(backend: _Object, _version: int) -> dict[str, Any]:
    return {"backend": "ipip", "directRouting": backend.take("DirectRouting", bool, False)}


def _alloc(_backend: _Object, _version: int) -> dict[str, Any]:
    return {"backend": "none"}


_READERS: dict[str, Callable[[_Object, int], dict[str, Any]]] = {
    "alloc": _alloc,
    "host-gw": _host_gw,
    "ipip": _ipip,
    "vxlan": _vxlan,
}


def _types() -> str:
    return ", ".join(sorted(_READERS))
