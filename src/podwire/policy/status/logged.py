"""A logged packet that a policy dropped, would have dropped or let through (pure)."""

import datetime

import msgspec

from podwire.policy.connectionmatch import Connection
from podwire.policy.verdicts import RuleHit


class LoggedPacket(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One line of the policy log."""

    at: str
    """RFC 3339 with milliseconds."""
    node: str
    verdict: str
    """``dropped``; ``audited``: it passed, and would be dropped if the policies in audit were in force; ``allowed``."""
    direction: str
    """``ingress`` or ``egress``."""
    source: str
    """``namespace/name`` of a pod, ``node NAME``, or the address."""
    destination: str
    protocol: str
    port: int
    """The destination's port; 0: the protocol has no ports."""
    source_address: str
    destination_address: str
    source_port: int = 0
    policies: tuple[str, ...] = ()
    """The policies that decided: the policy with the rule, or all isolating policies."""
    rule: int | None = None
    """The index of the rule; None: no rule allows."""
    why: str = ""
    """The explanation of ``podwire why`` for the connection."""

    def fields(self) -> dict[str, object]:
        """The fields of the line in the agent's log."""
        return {
            "from": self.source,
            "to": self.destination,
            "port": f"{self.port}/{self.protocol}" if self.port else self.protocol,
            "direction": self.direction,
            "policy": ",".join(self.policies),
            **({"rule": self.rule} if self.rule is not None else {}),
            "source": self.source_address,
            "destination": self.destination_address,
            "why": self.why,
        }


def logged_packet(
    node: str, at_s: float, hit: RuleHit | None, connection: Connection, *, source_port: int = 0, why: str = ""
) -> LoggedPacket:
    """The log entry of a packet; ``hit`` None: the rule was removed meanwhile."""
    return LoggedPacket(
        at=_stamp(at_s),
        node=node,
        verdict=hit.verdict if hit is not None else "dropped",
        direction=hit.direction.lower() if hit is not None else "",
        source=connection.source.name,
        destination=connection.destination.name,
        protocol=connection.protocol,
        port=connection.port,
        source_address=connection.source.address,
        destination_address=connection.destination.address,
        source_port=source_port,
        policies=hit.policies if hit is not None else (),
        rule=hit.rule if hit is not None and hit.rule >= 0 else None,
        why=why,
    )


def log_line(packet: LoggedPacket) -> str:
    """The text of a log entry for people."""
    head = f"{packet.at[11:-1]} {packet.node:8} {packet.verdict:7}"
    if packet.why:
        return f"{head} {packet.why}"
    port = f" {packet.port}" if packet.port else ""
    cause = f" ({', '.join(packet.policies)} {packet.direction})" if packet.policies else ""
    return f"{head} {packet.source} -> {packet.destination} {packet.protocol}{port}{cause}"


def _stamp(at_s: float) -> str:
    instant = datetime.datetime.fromtimestamp(at_s, datetime.UTC)
    return f"{instant:%Y-%m-%dT%H:%M:%S}.{instant.microsecond // 1000:03d}Z"
