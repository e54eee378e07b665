"""Foreign IPAM plugins: how the program on the host is asked to run one, and what it reports (pure).

A configuration with an ``ipam`` section whose ``type`` is another plugin leaves addresses to that plugin. It must run
on the host, with the host's files: the answer :class:`Demand` makes the program run it, and send the request again with
the plugin's result (the protocol is in src/cni/podwire-cni.c). When ADD fails after that, the demand is a DEL of the
plugin, together with the error that is the answer then.
"""

import msgspec

from podwire.cni import gojson, spec
from podwire.cni.protocol import CniRequest
from podwire.errors import CniError, PodwireError

DEMAND = 253
_MISSING = 127
_VARIABLE = "CNI_PODWIRE_IPAM"


class Demand(PodwireError):
    """The program must run a plugin with a command; with ``final``, that is the answer of the request."""

    def __init__(self, verb: str, plugin: str, final: bytes = b"") -> None:
        self.message = bytes([DEMAND]) + f"{verb}\0{plugin}\0".encode() + final
        super().__init__(f"{verb} of {plugin}")


class _Failure(spec.Document, frozen=True):
    code: int = spec.INTERNAL
    msg: str = ""
    details: str = ""


def foreign(conf: spec.NetConf) -> str:
    """The type of the other plugin that assigns addresses; empty: podwire does.

    Raises: CniError 7 when the type is not the name of a program.
    """
    plugin = conf.ipam.type
    if plugin in ("", spec.OWN_TYPE):
        return ""
    if "/" in plugin or plugin in (".", "..") or "\0" in plugin:
        raise CniError(spec.INVALID_CONFIG, f"ipam.type {plugin!r} is not the name of a plugin")
    return plugin


def outcome(request: CniRequest) -> spec.CniResult:
    """What the foreign plugin printed, for ADD its result.

    Raises: Demand when it has not run yet; CniError with its error.
    """
    plugin = foreign(request.conf)
    report = request.environment.get(_VARIABLE)
    if report is None:
        raise Demand(request.command, plugin)
    status, _, text = report.partition(" ")
    if status == str(_MISSING):
        raise CniError(spec.INVALID_CONFIG, f"the IPAM plugin {plugin} is not in CNI_PATH")
    try:
        document = spec.decode_config(text.encode() or b"{}")
        if int(status):
            failure = gojson.convert(document, _Failure)
            raise CniError(failure.code, f"IPAM plugin {plugin}: {failure.msg or 'failed'}", failure.details)
        return spec.parse_result(document, request.conf.cni_version)
    except msgspec.ValidationError as problem:
        message = f"IPAM plugin {plugin} printed something that is not a result"
        raise CniError(spec.DECODING_FAILURE, message, text[:200]) from problem
