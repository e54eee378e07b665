"""What chained plugins keep on disk of each attachment, and read from each request."""

from collections.abc import Mapping
from typing import Protocol

from podwire.cni import spec
from podwire.cni.protocol import CniRequest
from podwire.errors import CniError


class Facts(Protocol):
    """Where values are kept on disk under a name; an empty value is none."""

    def fact(self, name: str) -> bytes: ...

    def facts(self, beginning: str) -> Mapping[str, bytes]: ...

    def remember(self, name: str, body: bytes) -> None: ...


class ChainedPlugin(Protocol):
    """A plugin that runs behind the one that wires the pod."""

    def handle(self, request: CniRequest, netns: str) -> bytes:
        """Handles a request and returns the text for its standard output; the namespace was checked.

        Raises: CniError.
        """
        ...


def previous(request: CniRequest) -> spec.CniResult:
    """The result of the plugins in front.

    Raises: CniError 7 when there is none.
    """
    if request.conf.prev_result is None:
        detail = f"{request.conf.type} runs behind another plugin"
        raise CniError(spec.INVALID_CONFIG, "Required prevResult missing", detail)
    return spec.parse_result(request.conf.prev_result, request.conf.cni_version)


def stale(facts: Facts, plugin: str, request: CniRequest) -> list[str]:
    """The names of a plugin's facts about attachments of the network that the runtime does not list in GC."""
    valid_attachments = request.conf.attachments_in_use
    if valid_attachments is None or request.conf.disable_gc:
        return []
    beginning = f"{plugin} {request.conf.name}/"
    valid_names = {f"{beginning}{container}/{ifname}" for container, ifname in valid_attachments}
    return [name for name in facts.facts(beginning) if name not in valid_names]
