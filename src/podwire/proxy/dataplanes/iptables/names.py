"""Names of chains, the same as those of kube-proxy, so that people and tools know them (pure).

The name of a Service port's chain ends in 16 characters of a hash: base32 of SHA-256 over ``namespace/name:port`` (no
colon when the port has no name) and the protocol in lower case; for an endpoint's chain also ``address:port``.
"""

import hashlib
from base64 import b32encode

from podwire.proxy.servicemap import ResolvedEndpoint, ResolvedPort


def _suffix(text: str) -> str:
    return b32encode(hashlib.sha256(text.encode()).digest()).decode()[:16]


class PortChains:
    """The names of the chains of one Service port."""

    def __init__(self, port: ResolvedPort) -> None:
        self._text = port.name + port.protocol
        suffix = _suffix(self._text)
        self.cluster = f"KUBE-SVC-{suffix}"
        self.local = f"KUBE-SVL-{suffix}"
        self.external = f"KUBE-EXT-{suffix}"
        self.firewall = f"KUBE-FW-{suffix}"

    def endpoint(self, endpoint: ResolvedEndpoint) -> str:
        """The name of the chain that leads to one endpoint."""
        return f"KUBE-SEP-{_suffix(self._text + str(endpoint))}"
