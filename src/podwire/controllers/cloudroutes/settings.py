"""The section ``cloud`` of a controller's configuration (pure)."""

import re
from typing import Any, Literal

import msgspec

from podwire.errors import ConfigError

SOURCE = "controller"
ADDRESSES_MAX = 1000
_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class CloudSettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The cloud whose network routes to pods.

    ``provider`` is a name of the registry; empty: the controllers do nothing. ``cluster`` is the name in the marks on
    the cloud's objects, different for each cluster of one account. ``pods`` is as ``routing.cloudroutes.pods`` of the
    agents: ``routes`` to pod CIDRs (controller cloudroutes), or addresses of ``interfaces`` (cloudaddresses), with
    ``warm_addresses`` without a pod on each node, and ``minimum_addresses`` in all; ``ipv6``: as many of IPv6 too;
    ``prefixes``: whole prefixes in place of single addresses. ``options`` are those of the provider.
    """

    provider: str = ""
    cluster: str = ""
    pods: Literal["routes", "interfaces"] = "routes"
    warm_addresses: int = 5
    minimum_addresses: int = 0
    ipv6: bool = False
    prefixes: bool = False
    options: dict[str, Any] = {}

    def check(self) -> None:
        """Checks the name of the cluster, and numbers.

        Raises: ConfigError naming the field.
        """
        for field, number in (("warmAddresses", self.warm_addresses), ("minimumAddresses", self.minimum_addresses)):
            if not 0 <= number <= ADDRESSES_MAX:
                raise ConfigError(SOURCE, f"cloud.{field}", f"{number} is not in 0..{ADDRESSES_MAX}")
        if self.provider and not _CLUSTER.fullmatch(self.cluster):
            expected = "expected 1 to 100 letters, digits, dots, dashes and underscores: the name in the cloud's tags"
            raise ConfigError(SOURCE, "cloud.cluster", f"{self.cluster!r}: {expected}")
