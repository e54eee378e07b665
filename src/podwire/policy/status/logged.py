"""A logged packet that a policy dropped, would have dropped or let through (pure)."""

import datetime

import msgspec

from podwire.policy.evaluate import Connection
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
    """Of the destination; 0: the protocol has none."""
    source_address: str
    destination_address: str
    source_port: int = 0
    policies: tuple[str, ...] = ()
    """The policies that decided: the one with the rule, or all isolating policies."""
    rule: int | None = None
    """The place of the rule; None: no rule allows."""
    why: str = ""
    """What ``podwire why`` says of the connection."""

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


def log_line(one: LoggedPacket) -> str:
    """One line for a person."""
    place = f"{one.at[11:-1]} {one.node:8} {one.verdict:7}"
    if one.why:
        return f"{place} {one.why}"
    port = f" {one.port}" if one.port else ""
    cause = f" ({', '.join(one.policies)} {one.direction})" if one.policies else ""
    return f"{place} {one.source} -> {one.destination} {one.protocol}{port}{cause}"


def _stamp(at_s: float) -> str:
    instant = datetime.datetime.fromtimestamp(at_s, datetime.UTC)
    return f"{instant:%Y-%m-%dT%H:%M:%S}.{instant.microsecond // 1000:03d}Z"
