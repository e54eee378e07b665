"""IPAMBlock (``podwire.io/v1alpha1``): a range of pod addresses that one node has claimed from an IPPool."""

from podwire.model.meta import Fact, ObjectMeta

OWN_GROUP = "podwire.io"
"""The API group of podwire's own kinds."""
API_VERSION = f"{OWN_GROUP}/v1alpha1"


class IpamBlockSpec(Fact, frozen=True):
    """The range, its pool, and the node that has claimed it; ``node`` is empty when that node is gone.

    ``confirmed``: no other block overlaps, so the node uses the block. ``lent`` has the node that uses each address
    that the owner does not use itself. ``requests`` has the number of addresses that each other node asks for.
    """

    cidr: str = ""
    pool: str = ""
    node: str = ""
    confirmed: bool = False
    lent: dict[str, str] = {}
    requests: dict[str, int] = {}


class IpamBlock(Fact, frozen=True):
    """``podwire.io/v1alpha1`` IPAMBlock, cluster-scoped."""

    api_version: str = API_VERSION
    kind: str = "IPAMBlock"
    metadata: ObjectMeta = ObjectMeta()
    spec: IpamBlockSpec = IpamBlockSpec()
