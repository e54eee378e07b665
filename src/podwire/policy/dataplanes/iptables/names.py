"""Names of chains and sets; each begins with the prefix that marks objects of podwire (pure).

Chains are in the table ``mangle``. Names of new chains for policies end in a hash of their meaning.
"""

import hashlib
import re
from base64 import b32encode
from collections.abc import Iterable
from functools import lru_cache

import msgspec

from podwire.policy.ports import PortTable
from podwire.policy.profilenames import ProfileName
from podwire.policy.verdicts import RuleIdentity

TABLE = "mangle"
CHAIN = "PODWIRE-"
FORWARD, INPUT, SENT = f"{CHAIN}FORWARD", f"{CHAIN}INPUT", f"{CHAIN}SENT"
"""The chains that the kernel's built-in chains jump to."""
STRANGER, NOBODY, INTRUDER = f"{CHAIN}STRANGER", f"{CHAIN}NOBODY", f"{CHAIN}INTRUDER"
"""For packets from an unknown source, to an unknown destination, and from an unknown source to the node itself."""
NOWHERE = f"{CHAIN}NOWHERE"
"""For packets to an address of this node's pods that no device of a pod has."""
ENCAPSULATION, ENCAPSULATED = f"{CHAIN}ENCAPSULATION", f"{CHAIN}ENCAPSULATED"
UNMARK = f"{CHAIN}UNMARK"
OUT, IN, TABLES = f"{CHAIN}OUT", f"{CHAIN}IN", f"{CHAIN}TABLES"
"""The chains that select, by number, the chain of a profile or of a table of ports."""
PORTS, RULE = f"{CHAIN}PORTS-", f"{CHAIN}RULE-"

_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_COMMENT = 250
"""Length of comments in bytes; iptables accepts 255."""


def set_prefix(family: str) -> str:
    """The prefix of the names of a family's sets."""
    return "podwire6-" if family == "ip6" else "podwire4-"


def short(value: object) -> str:
    """Eight letters and digits that tell a value from others: 40 bits of SHA-256."""
    digest = hashlib.sha256(msgspec.json.encode(value)).digest()
    return b32encode(digest[:5]).decode()


def profile_chain(profile: ProfileName, meaning: object) -> str:
    """The name of a profile's chain; ``meaning`` covers its tables, exact addresses left out."""
    root = IN if profile.direction == "Ingress" else OUT
    return f"{root}-{short((profile, meaning))}"


def profile_sets(chain: str, family: str) -> tuple[str, str]:
    """The names of a profile's two sets: exact addresses and networks."""
    name = set_prefix(family) + chain.removeprefix(CHAIN).lower()
    return f"{name}-hosts", f"{name}-ranges"


def ports_chain(table: PortTable, profile: ProfileName, attempt: int = 0) -> str:
    """The name of a new chain of a table of ports; another attempt gives another name."""
    return PORTS + short((profile, table, attempt))


@lru_cache(maxsize=1 << 14)
def rule_chain(hit: RuleIdentity) -> str:
    """The name of the chain of a rule."""
    return RULE + short(hit)


def comment(text: str) -> str:
    """The iptables match that only carries a comment."""
    text = text.encode()[:_COMMENT].decode(errors="ignore").strip()
    return f"-m comment --comment {text}" if _PLAIN.fullmatch(text) else f'-m comment --comment "{text}"'


_PROFILE = re.compile(r"--comment profile-(in|out)-([0-9a-z]+)(?: |$)")


def profile_comment(profile: ProfileName) -> str:
    """The iptables match that names the profile of a chain."""
    return comment(f"profile-{profile.text}")


def profile_of(rules: Iterable[str]) -> ProfileName | None:
    """The profile of a chain of the kernel by its rules; None: it is not the chain of a profile."""
    for rule in rules:
        match = _PROFILE.search(rule)
        if match is not None:
            return ProfileName("Ingress" if match[1] == "in" else "Egress", match[2])
    return None
