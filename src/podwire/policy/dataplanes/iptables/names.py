"""Names of chains and sets; each begins with the mark by which it is known as ours (pure).

Chains are in the table ``mangle``. What is made of policies ends in a hash of what it means, so what is there is right.
"""

import hashlib
import re
from base64 import b32encode

import msgspec

from podwire.policy.ports import PortTable
from podwire.policy.profile import ProfileKey
from podwire.policy.verdicts import DenyingPolicies, RuleHit

TABLE = "mangle"
CHAIN = "PODWIRE-"
FORWARD, INPUT, SENT = f"{CHAIN}FORWARD", f"{CHAIN}INPUT", f"{CHAIN}SENT"
"""Where the kernel's own chains lead."""
STRANGER, NOBODY, INTRUDER = f"{CHAIN}STRANGER", f"{CHAIN}NOBODY", f"{CHAIN}INTRUDER"
"""For a source that is no pod's, a destination that is no pod's, and a source that is no pod's to the node itself."""
NOWHERE = f"{CHAIN}NOWHERE"
"""For a destination that has no device of a pod."""
ENCAPSULATION, ENCAPSULATED = f"{CHAIN}ENCAPSULATION", f"{CHAIN}ENCAPSULATED"
UNMARK = f"{CHAIN}UNMARK"
OUT, IN, TABLES = f"{CHAIN}OUT", f"{CHAIN}IN", f"{CHAIN}TABLES"
"""From a number to the chain of a profile, or of a table of ports."""
PORTS, RULE = f"{CHAIN}PORTS-", f"{CHAIN}RULE-"

_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_COMMENT = 250
"""Of the 255 bytes that iptables takes as a comment."""


def set_prefix(family: str) -> str:
    """How the names of a family's sets begin."""
    return "podwire6-" if family == "ip6" else "podwire4-"


def short(value: object) -> str:
    """Eight letters and digits that tell a value from others: 40 bits of SHA-256."""
    digest = hashlib.sha256(msgspec.json.encode(value)).digest()
    return b32encode(digest[:5]).decode()


def profile_chain(key: ProfileKey, meaning: object) -> str:
    """The chain of a profile, given what it says beside exact addresses."""
    root = IN if key.direction == "Ingress" else OUT
    return f"{root}-{short((key, meaning))}"


def profile_sets(chain: str, family: str) -> tuple[str, str]:
    """The sets of a profile: exact addresses, networks."""
    name = set_prefix(family) + chain.removeprefix(CHAIN).lower()
    return f"{name}-hosts", f"{name}-ranges"


def ports_chain(table: PortTable, denying: DenyingPolicies) -> str:
    """The chain of a table of ports."""
    return PORTS + short((denying.of(table), table))


def rule_chain(hit: RuleHit) -> str:
    """The chain of a rule."""
    return RULE + short(hit)


def comment(text: str) -> str:
    """The match that does nothing but carry a text."""
    text = text.encode()[:_COMMENT].decode(errors="ignore").strip()
    return f"-m comment --comment {text}" if _PLAIN.fullmatch(text) else f'-m comment --comment "{text}"'
