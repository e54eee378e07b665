"""The query log: one line for each answered request. It costs more than the answer, so it is off by default.

With the log, repeated requests are not answered from the cache of replies, because that path does not look at them.
"""

from typing import Any

from podwire.dns import wire
from podwire.dns.names import decode_name
from podwire.errors import ProtocolError
from podwire.observe.log import Log

_FLAGS = ((wire.QR, "qr"), (wire.AA, "aa"), (wire.TC, "tc"), (wire.RD, "rd"), (wire.RA, "ra"))


class QueryLog:
    """Writes the lines."""

    def __init__(self) -> None:
        self._log = Log("dns.query")

    def report(self, request: bytes, reply: bytes, peer: tuple[Any, ...], protocol: str) -> None:
        """Writes the line of a request and its reply."""
        try:
            query = wire.parse_query(request)
        except ProtocolError:
            return
        flags = int.from_bytes(reply[2:4], "big")
        self._log.info(
            "answered",
            client=f"{peer[0]}:{peer[1]}",
            name=decode_name(query.name),
            type=wire.TYPE_NAMES.get(query.qtype, str(query.qtype)),
            protocol=protocol,
            id=query.id,
            bytes=len(request),
            rcode=wire.RCODE_NAMES.get(flags & 0xF, str(flags & 0xF)),
            flags=",".join(name for bit, name in _FLAGS if flags & bit),
            answers=int.from_bytes(reply[6:8], "big"),
            reply_bytes=len(reply),
        )
