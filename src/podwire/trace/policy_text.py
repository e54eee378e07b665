"""What policies say of a connection, as text: in one line, for logs and lists, and at length (pure)."""


from podwire.trace.answer import DirectionSaid


def one_line(protocol: str, port: int, egress: DirectionSaid, ingress: DirectionSaid) -> str:
    """Who connects, and what both directions come to."""
    number = f" {port}" if port else ""
    subject = f"{egress.subject} -> {ingress.subject} {protocol}{number}"
    denied = [each for each in (egress, ingress) if not each.allowed]
    if denied:
        first = f"{subject}: dropped at {denied[0].direction.lower()}: {denied[0].message}"
        return first if len(denied) == 1 else f"{first}; at ingress it would be dropped too: {ingress.message}"
    return f"{subject}: allowed: egress, {egress.message}; ingress, {ingress.message}"
