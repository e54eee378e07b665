"""The protocol between the CNI program and the agent, and the validation of requests.
The program sends ``PODWIRE1 NUL (NAME=VALUE NUL)* NUL stdin`` and closes its writing side; the agent answers one
byte, the exit status, and then standard output. The first byte of the request carries the open network namespace
as a descriptor when the program could open ``CNI_NETNS``. Validation follows ``skel`` of containernetworking:
every missing variable is named in one error of code 4.
"""

import re

import msgspec

from podwire.cni import spec
from podwire.errors import CniError

MAGIC = b"PODWIRE1\0"
LIMIT = 4 << 20
"""The largest request, in bytes."""

_REQUIRED = {
    "ADD": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"),
    "CHECK": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"),
    "DEL": ("CNI_CONTAINERID", "CNI_IFNAME"),
    "GC": (),
    "STATUS": (),
    "VERSION": (),
}
_SINCE = {"CHECK": "0.4.0", "STATUS": "1.1.0", "GC": "1.1.0"}
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
_BAD_IN_IFNAME = re.compile(r"[\s/:]")
_IFNAME_LIMIT = 15


class AttachmentKey(msgspec.Struct, frozen=True, gc=False, order=True):
    """Identifies an attachment: network name, container, interface."""

    network: str
    container: str
    ifname: str

    def __str__(self) -> str:
        return f"{self.network}/{self.container}/{self.ifname}"


class CniRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One valid request; ``netns`` is empty for DEL of a pod whose namespace is gone."""

    command: str
    conf: spec.NetConf
    key: AttachmentKey
    netns: str = ""
    namespace: str = ""
    pod: str = ""
    uid: str = ""

    @property
    def pod_name(self) -> str:
        """``namespace/name`` of the pod, or the container ID when the runtime does not name the pod."""
        return f"{self.namespace}/{self.pod}" if self.pod else self.key.container


def split(message: bytes) -> tuple[dict[str, str], bytes]:
    """Environment and standard input of a request.

    Raises: CniError 5 when the message is not a complete request of podwire-cni.
    """
    head, separator, stdin = message.partition(b"\0\0")
    if not message.startswith(MAGIC) or not separator:
        raise CniError(spec.IO_FAILURE, "the request does not come from podwire-cni")
    pairs = head[len(MAGIC) :].decode("utf-8", "replace").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair), stdin


def join(environment: dict[str, str], stdin: bytes) -> bytes:
    """The message of a request, as the program sends it."""
    pairs = b"".join(f"{name}={value}".encode() + b"\0" for name, value in environment.items())
    return MAGIC + pairs + b"\0" + stdin


def parse(environment: dict[str, str], stdin: bytes) -> CniRequest:
    """The request of a message.

    Raises: CniError 4 (invalid variables), 6 and 1 (invalid configuration), 7 (invalid network name).
    """
    command = environment.get("CNI_COMMAND", "")
    if command not in _REQUIRED:
        raise CniError(
            spec.INVALID_ENVIRONMENT, f"unknown CNI_COMMAND {command!r}", f"expected one of {', '.join(_REQUIRED)}"
        )
    if missing := [name for name in _REQUIRED[command] if not environment.get(name)]:
        raise CniError(spec.INVALID_ENVIRONMENT, f"required env variables [{','.join(missing)}] missing")
    if command == "VERSION":
        conf = spec.NetConf(cni_version=_version_of(stdin))
    else:
        conf = spec.parse_config(stdin)
        _check_config(command, conf)
    container, ifname = environment.get("CNI_CONTAINERID", ""), environment.get("CNI_IFNAME", "")
    _check_names(command, container, ifname)
    args = _arguments(environment.get("CNI_ARGS", ""))
    return CniRequest(
        command=command,
        conf=conf,
        key=AttachmentKey(conf.name, container, ifname),
        netns=environment.get("CNI_NETNS", ""),
        namespace=args.get("K8S_POD_NAMESPACE", ""),
        pod=args.get("K8S_POD_NAME", ""),
        uid=args.get("K8S_POD_UID", ""),
    )


def _version_of(stdin: bytes) -> str:
    try:
        version = spec.parse_config(stdin or b"{}").cni_version
    except CniError:
        return spec.VERSIONS[-1]
    return version if stdin else spec.VERSIONS[-1]


def _check_config(command: str, conf: spec.NetConf) -> None:
    if not conf.name:
        raise CniError(spec.INVALID_CONFIG, "the network configuration has no name")
    if not _NAME.fullmatch(conf.name):
        raise CniError(
            spec.INVALID_CONFIG,
            f"invalid network name {conf.name!r}",
            "expected letters, digits, '_', '.' and '-', first a letter or digit",
        )
    since = _SINCE.get(command, spec.VERSIONS[0])
    if not spec.at_least(conf.cni_version, since):
        raise CniError(
            spec.INCOMPATIBLE_VERSION,
            f"config version does not allow {command}",
            f"{command} came with {since}, the configuration has {conf.cni_version}",
        )


def _check_names(command: str, container: str, ifname: str) -> None:
    if "CNI_CONTAINERID" not in _REQUIRED[command]:
        return
    if not _NAME.fullmatch(container):
        raise CniError(spec.INVALID_ENVIRONMENT, f"invalid CNI_CONTAINERID {container!r}")
    if len(ifname) > _IFNAME_LIMIT or ifname in (".", "..") or _BAD_IN_IFNAME.search(ifname):
        raise CniError(
            spec.INVALID_ENVIRONMENT,
            f"invalid CNI_IFNAME {ifname!r}",
            f"at most {_IFNAME_LIMIT} characters, no white space, '/' or ':', not '.' or '..'",
        )


def _arguments(text: str) -> dict[str, str]:
    pairs = (pair.split("=", 1) for pair in text.split(";") if pair)
    try:
        return dict(pairs)
    except ValueError as problem:
        raise CniError(spec.INVALID_ENVIRONMENT, f"invalid CNI_ARGS {text!r}", "expected NAME=VALUE;...") from problem
