"""Reads the subnets of flanneld from etcd, for a cluster that changes from Flannel, and writes this node's own.

Guarantees: 1. leases are read every :data:`READ_S`; 2. while no endpoint answers, the last leases stay, also over
restarts: they are kept in a file; 3. an answer without leases counts when the next one has none either, after there
were some; 4. with ``flannel.announce``, the lease of this node is written when it is missing or differs, and every
:data:`RENEW_S`; 5. a lease for the same subnet with the address of another machine is not overwritten.

Cost: a connection and one request every :data:`READ_S`.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from podwire.agent.config import EtcdSection
from podwire.errors import ConfigError, Disconnected
from podwire.http.client import connect, encode_request
from podwire.http.tls import client_context
from podwire.model.node import Node
from podwire.observe.log import Log
from podwire.routing.flannel.leases import (
    LEASE_S,
    SubnetLease,
    encode_put,
    encode_range,
    own_lease,
    parse_range,
    with_leases,
)
from podwire.runtime.clock import Clock
from podwire.runtime.files import write_atomically

READ_S = 2.0
RENEW_S = LEASE_S / 4
_ANSWER_S = 5.0


def tls_of(section: EtcdSection) -> ssl.SSLContext | None:
    """The TLS settings of the client; None for endpoints of http.

    Raises: ConfigError naming the field.
    """
    if not section.endpoints or not section.endpoints[0].startswith("https:"):
        return None
    field = "flannel.etcd.caFile"
    try:
        context = client_context(Path(section.ca_file).read_text() if section.ca_file else "")
        field = "flannel.etcd.certFile"
        if section.cert_file:
            context.load_cert_chain(section.cert_file, section.key_file)
    except (OSError, ssl.SSLError, ValueError) as failure:
        raise ConfigError("agent", field, f"certificates do not load: {failure}") from failure
    return context


class FlannelLeases:
    """The leases in etcd, laid over the Nodes of the API, which ``api_nodes`` returns.

    ``own`` is the name of this node, ``file`` keeps the leases. ``report`` is called with what is wrong, empty when
    nothing is.
    """

    def __init__(
        self,
        section: EtcdSection,
        own: str,
        api_nodes: Callable[[], Mapping[str, Node]],
        file: Path,
        clock: Clock,
        report: Callable[[str], None],
    ) -> None:
        self.known = asyncio.Event()
        """Set when the leases were read, or could not be read once."""
        self.changed: Callable[[], None] = lambda: None
        self._report = report
        self._api_nodes = api_nodes
        self._section = section
        self._own = own
        self._file = file
        self._clock = clock
        self._tls = tls_of(section)
        self._log = Log("routing")
        self._leases: tuple[SubnetLease, ...] = ()
        self._empty = False
        self._lease_nodes: dict[str, Node] = {}
        self._own_lease: SubnetLease | None = None
        self._written_at: float | None = None
        self._remember()

    def _remember(self) -> None:
        """Takes the leases that an earlier agent read."""
        try:
            self._leases = msgspec.json.decode(self._file.read_bytes(), type=tuple[SubnetLease, ...])
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError) as failure:
            self._log.warning("cannot read the saved leases of flanneld", file=self._file, problem=failure)

    def nodes(self) -> Mapping[str, Node]:
        """The Nodes of the API with those of the leases. An unchanged Node is the same object again."""
        nodes = self._api_nodes()
        merged = with_leases(nodes, self._leases, self._own)
        lease_nodes = {name: node for name, node in merged.items() if node is not nodes.get(name)}
        before = self._lease_nodes
        self._lease_nodes = {
            name: before[name] if before.get(name) == node else node for name, node in lease_nodes.items()
        }
        return merged | self._lease_nodes

    def announce(self, annotations: Mapping[str, str], pod_cidrs: Sequence[str]) -> None:
        """Sets the lease of this node by Flannel's annotations; none are no lease."""
        self._own_lease = own_lease(annotations, pod_cidrs)

    async def run(self) -> None:
        """Reads and writes until cancelled."""
        while True:
            problem = ""
            try:
                problem = await self._read()
                problem = problem or await self._write()
            except (OSError, Disconnected, TimeoutError, ValueError) as failure:
                problem = f"flannel.etcd: {', '.join(self._section.endpoints)}: {failure or 'no answer'}"
            self._report(problem)
            self.known.set()
            await self._clock.sleep(READ_S)

    async def _read(self) -> str:
        """Reads all leases; returns what is wrong with some of them."""
        answer = await self._ask("/v3/kv/range", encode_range(self._section.prefix))
        leases, problems = parse_range(answer, self._section.prefix)
        unconfirmed = bool(self._leases) and not leases and not self._empty
        self._empty = not leases
        if leases != self._leases and not unconfirmed:
            self._log.info("read the leases of flanneld", leases=len(leases))
            self._leases = leases
            write_atomically(self._file, msgspec.json.encode(leases), 0o600)
            self.changed()
        return f"flannel.etcd: {problems[0]}" if problems else ""

    async def _write(self) -> str:
        """Writes the lease of this node; returns why not."""
        own = self._own_lease
        if own is None:
            return ""
        present = next((lease for lease in self._leases if lease.subnets == own.subnets), None)
        if present is not None and not set(present.addresses) & set(own.addresses):
            return f"flannel.etcd: {', '.join(present.addresses)} has the lease of {own.subnets[0]}, this node's subnet"
        now = self._clock.monotonic()
        if present == own and self._written_at is not None and now - self._written_at < RENEW_S:
            return ""
        granted = msgspec.json.decode(await self._ask("/v3/lease/grant", {"TTL": LEASE_S}), type=dict[str, Any])
        await self._ask("/v3/kv/put", encode_put(own, self._section.prefix, str(granted.get("ID", "0"))))
        self._written_at = now
        return ""

    async def _ask(self, path: str, document: Mapping[str, Any]) -> bytes:
        """The answer of the first endpoint that answers.

        Raises: OSError; Disconnected; TimeoutError; ValueError when the answer is an error.
        """
        for number, endpoint in enumerate(self._section.endpoints):
            try:
                return await self._exchange(endpoint, path, msgspec.json.encode(document))
            except (OSError, Disconnected, TimeoutError):
                if number == len(self._section.endpoints) - 1:
                    raise
        raise OSError("no endpoints")

    async def _exchange(self, endpoint: str, path: str, body: bytes) -> bytes:
        url = urlsplit(endpoint)
        async with asyncio.timeout(_ANSWER_S):
            connection = await connect(url.hostname or "", url.port or 2379, self._tls)
            try:
                headers = (("host", url.netloc), ("content-type", "application/json"))
                connection.send(encode_request("POST", path, headers, body))
                await connection.head()
                answer = await connection.body()
            finally:
                connection.abort()
        if connection.status != 200:
            raise ValueError(f"{path}: status {connection.status}: {answer[:200].decode(errors='replace').strip()}")
        return answer
