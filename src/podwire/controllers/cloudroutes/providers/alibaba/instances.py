"""Instances of Alibaba Cloud by the names that Nodes have, and the documents of their interfaces."""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from podwire.controllers.cloudroutes.providers.alibaba.api import ECS, AlibabaApi, listed

_PROVIDER_ID = re.compile(r"(?:alicloud://)?[a-z0-9-]+\.(i-[0-9a-z]+)")
_AT_ONCE = 100
"""Instances of one call, which is what the API takes."""
_INTERFACES_AT_ONCE = 100
INTERFACES = "NetworkInterfaceSets.NetworkInterfaceSet"


def instance_of(provider_id: str) -> str:
    """The instance of a ``spec.providerID``, as Alibaba's cloud controller manager writes it.

    Raises: ValueError with the expected form.
    """
    match = _PROVIDER_ID.fullmatch(provider_id)
    if match is None:
        raise ValueError(f"spec.providerID is {provider_id!r}: expected cn-hangzhou.i-bp1g6zv0ce8oghu7k4gz")
    return match[1]


def describe_instances(api: AlibabaApi, instances: Collection[str]) -> Iterator[dict[str, Any]]:
    """The documents of instances; those that do not exist are left out.

    Raises: CloudUnavailable; CloudError.
    """
    names = sorted(instances)
    for at in range(0, len(names), _AT_ONCE):
        chosen = json.dumps(names[at : at + _AT_ONCE])
        yield from api.pages(ECS, "DescribeInstances", "Instances.Instance", InstanceIds=chosen, MaxResults=_AT_ONCE)


def marked_interfaces(api: AlibabaApi, mark: str) -> Iterator[dict[str, Any]]:
    """The documents of interfaces with a tag.

    Raises: CloudUnavailable; CloudError.
    """
    chosen = {"Tag": [{"Key": mark}], "MaxResults": _INTERFACES_AT_ONCE}
    yield from api.pages(ECS, "DescribeNetworkInterfaces", INTERFACES, **chosen)


def tag_of(document: Mapping[str, Any], key: str) -> str:
    """The value of a tag of an interface; empty without the tag."""
    tags = listed(dict(document), "Tags.Tag")
    return next((str(tag.get("TagValue", "")) for tag in tags if tag.get("TagKey") == key), "")
