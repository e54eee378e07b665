"""Matches of iptables rules, as iptables-save prints them (pure)."""


def comment(text: str) -> str:
    """The match that does nothing but carry a text."""
    return f'-m comment --comment "{text}"'


def host(address: str) -> str:
    """One address, as iptables-save prints it."""
    return f"{address}/128" if ":" in address else f"{address}/32"
