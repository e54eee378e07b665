"""The state of sessions, as BIRD 2 shows it in the answer to ``show protocols all``.

The answer has a block for each protocol. Its first line begins in the first column and has the name, the kind, the
table, the state, the time since when (``timeformat protocol iso long``) and, for BGP, the state of the session
(RFC 4271 section 8.2.2). Lines below it are indented: the neighbour, the last error, and a count of routes per channel.
"""

import re
from collections.abc import Iterator

import msgspec

_HEAD = re.compile(r"^(\w+) +BGP +\S+ +\S+ +(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\S* *(\w*)")
_FIELD = re.compile(r"^ +(Description|BGP state|Neighbor address|Neighbor AS|Last error|Routes): +(.*)$")
_ROUTES = re.compile(r"(\d+) imported, (?:\d+ filtered, )?(\d+) exported")

ESTABLISHED = "Established"
_NAMED = 3


class SessionState(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One session now; the counts are of routes that its filters accepted."""

    peer: str = ""
    """The Node or object that the session is with."""
    address: str = ""
    as_number: int = 0
    state: str = "Down"
    """The state of the session by RFC 4271, or ``Down`` for one that is not started."""
    since: str = ""
    """Local time, ``2026-11-24 04:08:01``."""
    received: int = 0
    sent: int = 0
    last_error: str = ""


def parse_sessions(text: str) -> tuple[SessionState, ...]:
    """The sessions of an answer, in the order of their names.

    One that waits for any neighbour of a link is left out when there is a session with such a neighbour.
    """
    sessions = sorted(_sessions(text))
    accepted = {session.peer for _, session in sessions if session.address}
    return tuple(session for _, session in sessions if session.address or session.peer not in accepted)


def summary(sessions: tuple[SessionState, ...]) -> str:
    """How many sessions are established, and which are not, on one line; empty without sessions."""
    if not sessions:
        return ""
    down = [session for session in sessions if session.state != ESTABLISHED]
    if not down:
        return f"bgp: {len(sessions)} of {len(sessions)} sessions established"
    named = [_not_established(session) for session in down[:_NAMED]]
    more = [f"and {len(down) - _NAMED} more"] if len(down) > _NAMED else []
    return f"bgp: {len(sessions) - len(down)} of {len(sessions)} sessions established; {'; '.join(named + more)}"


def _not_established(session: SessionState) -> str:
    """A session without its present state, which changes with each attempt to connect."""
    error = f" ({session.last_error})" if session.last_error else ""
    return f"{session.peer or session.address} {session.address} AS {session.as_number} is not{error}"


def _sessions(text: str) -> Iterator[tuple[str, SessionState]]:
    for block in re.split(r"\n(?=\S)", text):
        head = _HEAD.match(block)
        if head is None:
            continue
        fields = {match[1]: match[2].strip() for line in block.splitlines() if (match := _FIELD.match(line))}
        routes = _ROUTES.search(fields.get("Routes", ""))
        number = fields.get("Neighbor AS", "")
        yield (
            head[1],
            SessionState(
                peer=fields.get("Description", ""),
                address=fields.get("Neighbor address", "").partition("%")[0],
                as_number=int(number) if number.isdecimal() else 0,
                state=fields.get("BGP state", "Down"),
                since=head[2],
                received=int(routes[1]) if routes else 0,
                sent=int(routes[2]) if routes else 0,
                last_error=fields.get("Last error", ""),
            ),
        )
