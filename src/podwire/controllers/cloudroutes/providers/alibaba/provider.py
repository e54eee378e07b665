"""Route tables of the Virtual Private Cloud of Alibaba Cloud.

A route to a pod CIDR leads to the instance of the node: next hops of the type ``NetworkInterface`` are for further
interfaces only. The VPC passes packets of foreign addresses at an instance, so nothing has to be switched off. The API
has no call that exchanges the next hop of a route; another instance for a pod CIDR means that the route is deleted and
made again, and packets have no route between the two calls.

Marks: the tag ``podwire.io/cluster/<cluster>`` of the instance's first interface, with the value ``routes``.

Cost: two calls for the tables, one for each table and 100 routes, one for 100 instances and one for 100 marked
interfaces each time the state is read; for a new node one call, and one for each table.
Source: the VPC API reference ("CreateRouteEntry", "DescribeRouteEntryList").
"""

from collections.abc import Collection, Iterator, Mapping
from ipaddress import ip_network
from typing import Any

import msgspec

from podwire.cluster.names import CLOUD_MARK
from podwire.controllers.cloudroutes.provider import (
    AddRoute,
    Change,
    Claim,
    CloudInterface,
    CloudRoute,
    CloudState,
    CloudTable,
    Network,
    Release,
)
from podwire.controllers.cloudroutes.providers.alibaba.api import ECS, VPC, AlibabaApi, listed
from podwire.controllers.cloudroutes.providers.alibaba.instances import (
    describe_instances,
    instance_of,
    marked_interfaces,
    tag_of,
)
from podwire.controllers.cloudroutes.providers.alibaba.options import AlibabaOptions
from podwire.controllers.cloudroutes.settings import CloudSettings
from podwire.errors import CloudError

CLUSTER_TAG = "kubernetes.io/cluster/"
MARK = "routes"
_AT_ONCE = 100
_GONE = ("InvalidEniId.NotFound", "InvalidResourceId.NotFound")


class AlibabaRouteTables:
    """The route tables of a VPC."""

    name = "alibaba"
    options: type[msgspec.Struct] = AlibabaOptions

    def __init__(self, settings: CloudSettings, options: AlibabaOptions) -> None:
        """Raises: ConfigError when the region or the credentials are missing."""
        self._cluster = settings.cluster
        self._options = options
        self._mark = CLOUD_MARK + settings.cluster
        self.api = AlibabaApi(options)

    def instance(self, provider_id: str) -> str:
        """The instance of a ``spec.providerID``.

        Raises: ValueError with the expected form.
        """
        return instance_of(provider_id)

    def read(self, instances: Collection[str]) -> CloudState:
        """The tables, the first interfaces of the instances, and all marked ones.

        Raises: CloudUnavailable; CloudError.
        """
        entries = {table: list(self._entries(table)) for table in self._tables()}
        marked = {
            document["NetworkInterfaceId"]: document
            for document in marked_interfaces(self.api, self._mark)
            if tag_of(document, self._mark) == MARK
        }
        hops = {hop for listing in entries.values() for entry in listing if (hop := _instance_of(entry))}
        hops |= {document["InstanceId"] for document in marked.values() if document.get("InstanceId")}
        documents = list(describe_instances(self.api, {*instances, *hops}))
        first = {document["InstanceId"]: primary for document in documents if (primary := _first(document))}
        interfaces = {
            item["NetworkInterfaceId"]: _interface(instance, item, marked)
            for instance, item in first.items()
            if instance in instances or item["NetworkInterfaceId"] in marked
        }
        names = {instance: item["NetworkInterfaceId"] for instance, item in first.items()}
        tables = (CloudTable(table, tuple(_route(e, names) for e in listing)) for table, listing in entries.items())
        return CloudState(tuple(tables), interfaces)

    def apply(self, change: Change) -> None:
        """Makes one change.

        Raises: CloudUnavailable; CloudError.
        """
        if isinstance(change, Claim):
            tag = {"ResourceType": "eni", "ResourceId": [change.interface]}
            self.api.call(ECS, "TagResources", **tag, Tag=[{"Key": self._mark, "Value": MARK}])
        elif isinstance(change, Release):
            self._release(change.interface)
        elif isinstance(change, AddRoute):
            self._add(change)
        else:
            self._delete(change.table, change.network)

    def _release(self, interface: str) -> None:
        try:
            tag = {"ResourceType": "eni", "ResourceId": [interface]}
            self.api.call(ECS, "UntagResources", **tag, TagKey=[self._mark])
        except CloudError as refusal:
            if refusal.code not in _GONE:
                raise

    def _add(self, change: AddRoute) -> None:
        answer = self.api.call(ECS, "DescribeNetworkInterfaces", NetworkInterfaceId=[change.interface], MaxResults=10)
        documents = listed(answer, "NetworkInterfaceSets.NetworkInterfaceSet")
        instance = documents[0].get("InstanceId", "") if documents else ""
        if not instance:
            raise CloudError("CreateRouteEntry", _GONE[0], f"interface {change.interface} has no instance")
        present = self._entry(change.table, change.network)
        if present is not None and _instance_of(present) == instance:
            return
        if present is not None and not change.replace:
            return  # Another controller was first; the next reading shows what it wrote.
        if present is not None:
            self._delete(change.table, change.network)
        hop = {"NextHopType": "Instance", "NextHopId": instance}
        destination = {"RouteTableId": change.table, "DestinationCidrBlock": str(change.network)}
        try:
            self.api.call(VPC, "CreateRouteEntry", **destination, **hop)
        except CloudError as refusal:
            if "quota" in refusal.code.lower():
                problem = f"table {change.table} is full, see the quota of custom routes in a table of the VPC"
                raise CloudError("CreateRouteEntry", "RouteLimitExceeded", problem) from refusal
            raise

    def _delete(self, table: str, network: Network) -> None:
        entry = self._entry(table, network)
        if entry is not None:
            self.api.call(VPC, "DeleteRouteEntry", RouteTableId=table, RouteEntryId=entry["RouteEntryId"])

    def _tables(self) -> Iterator[str]:
        if self._options.route_tables:
            yield from self._options.route_tables
            return
        chosen = {"Tag": [{"Key": CLUSTER_TAG + self._cluster}]}
        path = "RouterTableList.RouterTableListType"
        for item in self.api.numbered_pages(VPC, "DescribeRouteTableList", path, **chosen):
            yield item["RouteTableId"]

    def _entries(self, table: str, **chosen: str) -> Iterator[dict[str, Any]]:
        parameters = {"RouteTableId": table, "RouteEntryType": "Custom", "MaxResult": _AT_ONCE, **chosen}
        yield from self.api.pages(VPC, "DescribeRouteEntryList", "RouteEntrys.RouteEntry", **parameters)

    def _entry(self, table: str, network: Network) -> dict[str, Any] | None:
        entries = self._entries(table, DestinationCidrBlock=str(network))
        return next((entry for entry in entries if entry["DestinationCidrBlock"] == str(network)), None)


def _instance_of(entry: Mapping[str, Any]) -> str:
    """The instance to which a route leads; empty for a target of another kind."""
    hops = listed(dict(entry), "NextHops.NextHop")
    return str(hops[0].get("NextHopId", "")) if len(hops) == 1 and hops[0].get("NextHopType") == "Instance" else ""


def _route(entry: Mapping[str, Any], interfaces: Mapping[str, str]) -> CloudRoute:
    """A route; the target of one to an instance that no longer exists is the instance itself."""
    instance = _instance_of(entry)
    dead = bool(instance) and instance not in interfaces
    return CloudRoute(ip_network(entry["DestinationCidrBlock"]), interfaces.get(instance, instance), dead)


def _first(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """The document of an instance's first interface."""
    own = listed(dict(document), "NetworkInterfaces.NetworkInterface")
    return next((item for item in own if item.get("Type") == "Primary"), None)


def _interface(instance: str, document: Mapping[str, Any], marked: Collection[str]) -> CloudInterface:
    six = listed(dict(document), "Ipv6Sets.Ipv6Set")
    return CloudInterface(
        id=document["NetworkInterfaceId"],
        instance=instance,
        addresses=(document["PrimaryIpAddress"], *(item["Ipv6Address"] for item in six)),
        forwards=True,
        marked=document["NetworkInterfaceId"] in marked,
    )
