"""The protocol between the CNI program and the agent, and the validation of requests.
The program sends ``PODWIRE1 NUL (NAME=VALUE NUL)* NUL stdin`` and closes its writing side; the agent answers one
byte, the exit status, and then standard output. The first byte of the request carries the open network namespace
as a descriptor when the program could open ``CNI_NETNS``. Validation follows ``skel`` of containernetworking:
every missing variable is named in one error of code 4.
"""

import re
from typing import Any

import msgspec

from podwire.cni import spec, support
from podwire.errors import CniError

MAGIC = b"PODWIRE1\0"
DONE = b"\0"
"""The exit status of a request that succeeded, the first byte of its answer."""
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


_KNOWN_ARGS = ("IgnoreUnknown", "IP", "MAC")
_KUBERNETES = "K8S_"


class AttachmentKey(msgspec.Struct, frozen=True, gc=False, order=True):
    """Identifies an attachment: network name, container, interface."""

    network: str
    container: str
    ifname: str

    def __str__(self) -> str:
        return f"{self.network}/{self.container}/{self.ifname}"


class CniRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One valid request; ``netns`` is empty for DEL of a pod whose namespace is gone.

    ``args`` are the pairs of ``CNI_ARGS``; ``document`` and ``environment`` are the request as it was sent.
    """

    command: str
    conf: spec.NetConf
    key: AttachmentKey
    netns: str = ""
    namespace: str = ""
    pod: str = ""
    uid: str = ""
    args: dict[str, str] = {}
    document: dict[str, Any] = {}
    environment: dict[str, str] = {}

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

    DEL and GC ignore what only other verbs use: a pod that was added can always be deleted.

    Raises: CniError 4 (invalid variables), 6 and 1 (invalid configuration), 7 (invalid network name), 2 (a setting that
    podwire does not have).
    """
    command = environment.get("CNI_COMMAND", "")
    if command not in _REQUIRED:
        raise CniError(
            spec.INVALID_ENVIRONMENT, f"unknown CNI_COMMAND {command!r}", f"expected one of {', '.join(_REQUIRED)}"
        )
    if missing := [name for name in _REQUIRED[command] if not environment.get(name)]:
        raise CniError(spec.INVALID_ENVIRONMENT, f"required env variables [{','.join(missing)}] missing")
    removes = command in ("DEL", "GC")
    if command == "VERSION":
        document, conf = {}, spec.NetConf(cni_version=_version_of(stdin))
    else:
        document = spec.decode_config(stdin)
        conf = spec.parse_config(_without_additions(document) if removes else document)
        _check_config(command, conf)
        if not removes and not conf.lends and conf.type not in spec.CHAINED_TYPES:
            support.check(document)
    container, ifname = environment.get("CNI_CONTAINERID", ""), environment.get("CNI_IFNAME", "")
    _check_names(command, container, ifname)
    args = _arguments(environment.get("CNI_ARGS", ""), lenient=command not in ("ADD", "CHECK"))
    return CniRequest(
        command=command,
        conf=conf,
        key=AttachmentKey(conf.name, container, ifname),
        netns=environment.get("CNI_NETNS", ""),
        namespace=args.get("K8S_POD_NAMESPACE", ""),
        pod=args.get("K8S_POD_NAME", ""),
        uid=args.get("K8S_POD_UID", ""),
        args=args,
        document=document,
        environment=environment,
    )


def _without_additions(document: dict[str, Any]) -> dict[str, Any]:
    """A configuration without what the runtime and orchestrators add for ADD."""
    return {name: value for name, value in document.items() if name.casefold() not in ("runtimeconfig", "args", "dns")}


def _version_of(stdin: bytes) -> str:
    try:
        version = spec.parse_config(spec.decode_config(stdin or b"{}")).cni_version
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


def _arguments(text: str, *, lenient: bool) -> dict[str, str]:
    """The pairs of CNI_ARGS; those of Kubernetes and the conventions are known, others need ``IgnoreUnknown=1``."""
    pairs = [pair.partition("=") for pair in text.split(";") if pair]
    args = {name: value for name, separator, value in pairs if separator}
    if lenient:
        return args
    if len(args) != len({name for name, _, _ in pairs}):
        raise CniError(spec.INVALID_ENVIRONMENT, f"invalid CNI_ARGS {text!r}", "expected NAME=VALUE;...")
    unknown = [name for name in args if name not in _KNOWN_ARGS and not name.startswith(_KUBERNETES)]
    if unknown and args.get("IgnoreUnknown", "").lower() not in ("1", "t", "true"):
        detail = "IgnoreUnknown=1 makes plugins ignore them"
        raise CniError(spec.INVALID_ENVIRONMENT, f"unknown names in CNI_ARGS: {', '.join(unknown)}", detail)
    return args
