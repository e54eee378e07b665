"""The query log: one line for each answered request, in CoreDNS' format or as JSON.

It costs more than the answer, so it is off by default: with the log, repeated requests are not answered from the cache
of replies, because that path does not look at them. Source: CoreDNS' plugin ``log`` (placeholders and classes).
"""

import json
import re
from typing import Any, NamedTuple

from podwire.dns import wire
from podwire.dns.logformat import COMBINED, COMMON, JSON
from podwire.dns.names import decode_name
from podwire.errors import ProtocolError
from podwire.observe.log import Log

_FLAGS = ((wire.QR, "qr"), (wire.AA, "aa"), (wire.TC, "tc"), (wire.RD, "rd"), (wire.RA, "ra"), (wire.AD, "ad"),
          (wire.CD, "cd"))  # fmt: skip
_CLASS_NAMES = {1: "IN", 3: "CH", 4: "HS", 255: "ANY"}
_PLACEHOLDER = re.compile(r"\{([^{}\s]+)\}")


class LoggedQuery(NamedTuple):
    """A request and its reply, the addresses of client and server, and how long the reply took."""

    request: bytes
    reply: bytes
    peer: tuple[Any, ...]
    server: tuple[Any, ...]
    protocol: str
    seconds: float


class QueryLog:
    """Writes the lines; ``line`` has placeholders, ``classes`` are those that are written, none means all."""

    def __init__(self, line: str = "{common}", classes: tuple[str, ...] = ()) -> None:
        self._log = Log("dns.query")
        self._json = line == JSON
        self._line = line.replace("{common}", COMMON).replace("{combined}", COMBINED)
        self._classes = frozenset(classes)

    def report(self, query: LoggedQuery) -> None:
        """Writes the line of a request and its reply."""
        if self._classes and class_of(query.reply) not in self._classes:
            return
        try:
            fields = fields_of(query)
        except ProtocolError:
            return
        if self._json:
            self._log.info(json.dumps({key.lstrip(">"): value for key, value in fields.items()}))
        else:
            self._log.info(_PLACEHOLDER.sub(lambda match: str(fields.get(match[1], "-")), self._line))


def class_of(reply: bytes) -> str:
    """The class of a reply: success, denial (no such name, or no data) or error."""
    rcode = reply[3] & 0xF
    if rcode == wire.NOERROR:
        return "success" if reply[6:8] != b"\x00\x00" else "denial"
    return "denial" if rcode == wire.NXDOMAIN else "error"


def fields_of(query: LoggedQuery) -> dict[str, object]:
    """The values of the placeholders.

    Raises: ProtocolError for a request that cannot be read.
    """
    parsed = wire.parse_query(query.request)
    flags = int.from_bytes(query.reply[2:4], "big")
    edns = parsed.edns
    address = str(query.peer[0])
    return {
        "remote": f"[{address}]" if ":" in address else address,
        "port": query.peer[1],
        "local": query.server[0],
        ">id": parsed.id,
        "type": wire.TYPE_NAMES.get(parsed.qtype, f"TYPE{parsed.qtype}"),
        "class": _CLASS_NAMES.get(parsed.qclass, f"CLASS{parsed.qclass}"),
        "name": decode_name(parsed.name).lower(),
        "proto": query.protocol,
        "size": len(query.request),
        ">do": "true" if edns is not None and edns.dnssec_ok else "false",
        ">bufsize": 65535 if query.protocol == "tcp" else max(512, edns.size if edns is not None else 512),
        ">opcode": (parsed.flags & wire.OPCODE_MASK) >> 11,
        "rcode": wire.RCODE_NAMES.get(flags & 0xF, str(flags & 0xF)),
        ">rflags": ",".join(name for bit, name in _FLAGS if flags & bit),
        "rsize": len(query.reply),
        "duration": f"{query.seconds:.9f}s",
    }
