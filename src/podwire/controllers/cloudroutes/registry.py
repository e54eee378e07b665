"""The clouds by name; a provider is imported on demand, so a controller needs only the client of its own cloud."""

from typing import TypeVar

from podwire.controllers.cloudaddresses.provider import AddressProvider
from podwire.controllers.cloudroutes.provider import CloudProvider
from podwire.controllers.cloudroutes.settings import SOURCE, CloudSettings
from podwire.model.document import convert
from podwire.runtime.registry import Registry

PROVIDERS: Registry[type[CloudProvider]] = Registry(
    "cloud",
    "cloud.provider",
    {
        "aws": "podwire.controllers.cloudroutes.providers.aws.provider:AwsRouteTables",
        "alibaba": "podwire.controllers.cloudroutes.providers.alibaba.provider:AlibabaRouteTables",
    },
)
"""Clouds with route tables (``cloud.pods: routes``)."""
ADDRESS_PROVIDERS: Registry[type[AddressProvider]] = Registry(
    "cloud with addresses for pods",
    "cloud.provider",
    {
        "aws": "podwire.controllers.cloudroutes.providers.aws.addresses:AwsAddresses",
        "alibaba": "podwire.controllers.cloudroutes.providers.alibaba.addresses:AlibabaAddresses",
    },
)
"""Clouds whose interfaces have addresses for pods (``cloud.pods: interfaces``)."""

P = TypeVar("P", CloudProvider, AddressProvider)


def make_provider(settings: CloudSettings, registry: Registry[type[CloudProvider]] = PROVIDERS) -> CloudProvider | None:
    """The configured provider of routes; None when none is configured.

    Raises: ConfigError naming the field.
    """
    return _make(settings, registry) if settings.provider and settings.pods == "routes" else None


def make_address_provider(
    settings: CloudSettings, registry: Registry[type[AddressProvider]] = ADDRESS_PROVIDERS
) -> AddressProvider | None:
    """The configured provider of addresses; None when none is configured.

    Raises: ConfigError naming the field.
    """
    return _make(settings, registry) if settings.provider and settings.pods == "interfaces" else None


def _make(settings: CloudSettings, registry: Registry[type[P]]) -> P:
    settings.check()
    registry.check(settings.provider, SOURCE)
    kind = registry.load(settings.provider)
    return kind(settings, convert(settings.options, kind.options, SOURCE, "cloud.options"))
