"""Route tables of the Virtual Private Cloud of AWS.

The route table of a subnet decides where the VPC sends packets that leave the instances of the subnet. A route to a pod
CIDR has the elastic network interface of the node as its target; the interface needs its source/destination check
switched off, because the VPC drops packets of foreign addresses at an interface otherwise. All subnets of the cluster
must use the tables that are kept here.

Marks: the tag ``podwire.io/cluster/<cluster>`` of an interface. Its value, ``check-was-on`` or ``check-was-off``, says
whether the check is switched on again when the node has left.

Cost: one call for the tables, one for the marked interfaces and one for 100 nodes each time the state is read; for a
new node three calls and one for each further table. The instances themselves are not read.
Sources: "Route tables for your VPC" and "Amazon VPC quotas" of the VPC user guide, the EC2 API reference.
"""

import re
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
    DeleteRoute,
    Network,
    Release,
)
from podwire.controllers.cloudroutes.providers.aws.ec2 import Ec2
from podwire.controllers.cloudroutes.providers.aws.options import AwsOptions
from podwire.controllers.cloudroutes.settings import CloudSettings
from podwire.errors import CloudError

CLUSTER_TAG = "kubernetes.io/cluster/"
_RESTORES = {True: "check-was-on", False: "check-was-off"}
_PROVIDER_ID = re.compile(r"aws://[^/]*/[^/]*/(i-[0-9a-f]+)")
_AT_ONCE = 100
"""Values of one filter; the API takes 200."""
_FULL = ("RouteLimitExceeded",)


class AwsRouteTables:
    """The route tables of a VPC."""

    name = "aws"
    options: type[msgspec.Struct] = AwsOptions

    def __init__(self, settings: CloudSettings, options: AwsOptions) -> None:
        """Raises: ConfigError when boto3, the region or the credentials are missing."""
        self._cluster = settings.cluster
        self._options = options
        self._mark = CLOUD_MARK + settings.cluster
        self.ec2 = Ec2(options)

    def instance(self, provider_id: str) -> str:
        """The instance of a ``spec.providerID``.

        Raises: ValueError with the expected form.
        """
        return instance_of(provider_id)

    def read(self, instances: Collection[str]) -> CloudState:
        """The configured tables, the interfaces of the instances, and all marked ones.

        Raises: CloudUnavailable; CloudError.
        """
        interfaces = {interface.id: interface for interface in self._interfaces(instances)}
        return CloudState(tuple(self._tables(interfaces)), interfaces)

    def apply(self, change: Change) -> None:
        """Makes one change.

        Raises: CloudUnavailable; CloudError.
        """
        if isinstance(change, Claim):
            self._tag(change.interface, change.restores)
            self._check_source(change.interface, on=False)
        elif isinstance(change, Release):
            self._release(change)
        elif isinstance(change, AddRoute):
            self._add(change)
        else:
            self._delete(change)

    def _tag(self, interface: str, restores: bool) -> None:
        tag = {"Key": self._mark, "Value": _RESTORES[restores]}
        self.ec2.call("create_tags", Resources=[interface], Tags=[tag])

    def _check_source(self, interface: str, *, on: bool) -> None:
        self.ec2.call("modify_network_interface_attribute", NetworkInterfaceId=interface, SourceDestCheck={"Value": on})

    def _release(self, change: Release) -> None:
        try:
            if change.restores:
                self._check_source(change.interface, on=True)
            self.ec2.call("delete_tags", Resources=[change.interface], Tags=[{"Key": self._mark}])
        except CloudError as refusal:
            if refusal.code != "InvalidNetworkInterfaceID.NotFound":
                raise

    def _add(self, change: AddRoute) -> None:
        operation = "replace_route" if change.replace else "create_route"
        target = {"RouteTableId": change.table, "NetworkInterfaceId": change.interface}
        try:
            self.ec2.call(operation, **target, **_destination(change.network))
        except CloudError as refusal:
            if refusal.code == "RouteAlreadyExists":
                return  # Another controller was first; the next reading shows what it wrote.
            if refusal.code in _FULL:
                problem = f"table {change.table} is full, see the quota 'Routes per route table' of the VPC"
                raise CloudError(operation, refusal.code, problem) from refusal
            raise

    def _delete(self, change: DeleteRoute) -> None:
        try:
            self.ec2.call("delete_route", RouteTableId=change.table, **_destination(change.network))
        except CloudError as refusal:
            if refusal.code != "InvalidRoute.NotFound":
                raise

    def _tables(self, interfaces: Mapping[str, CloudInterface]) -> Iterator[CloudTable]:
        if self._options.route_tables:
            which: dict[str, Any] = {"RouteTableIds": list(self._options.route_tables)}
        else:
            which = {"Filters": [{"Name": "tag-key", "Values": [CLUSTER_TAG + self._cluster]}]}
        first = {
            interface.instance: interface.id
            for interface in interfaces.values()
            if interface.index == 0 and interface.instance
        }
        for table in self.ec2.pages("describe_route_tables", "RouteTables", **which):
            routes = (_route(route, first) for route in table.get("Routes", ()))
            yield CloudTable(table["RouteTableId"], tuple(route for route in routes if route is not None))

    def _interfaces(self, instances: Collection[str]) -> Iterator[CloudInterface]:
        names = sorted(instances)
        filters = [("attachment.instance-id", names[at : at + _AT_ONCE]) for at in range(0, len(names), _AT_ONCE)]
        for name, values in (*filters, ("tag-key", [self._mark])):
            chosen = [{"Name": name, "Values": values}]
            for interface in self.ec2.pages("describe_network_interfaces", "NetworkInterfaces", Filters=chosen):
                yield self._interface(interface)

    def _interface(self, document: Mapping[str, Any]) -> CloudInterface:
        attachment = document.get("Attachment") or {}
        mark = next((tag["Value"] for tag in document.get("TagSet", ()) if tag["Key"] == self._mark), None)
        return CloudInterface(
            id=document["NetworkInterfaceId"],
            instance=attachment.get("InstanceId", ""),
            index=attachment.get("DeviceIndex", 0),
            addresses=(
                *(address["PrivateIpAddress"] for address in document.get("PrivateIpAddresses", ())),
                *(address["Ipv6Address"] for address in document.get("Ipv6Addresses", ())),
            ),
            forwards=not document.get("SourceDestCheck", True),
            marked=mark in _RESTORES.values(),  # Interfaces for pods have the same tag with another value.
            restores=mark == _RESTORES[True],
        )


def instance_of(provider_id: str) -> str:
    """The instance of a ``spec.providerID``.

    Raises: ValueError with the expected form.
    """
    match = _PROVIDER_ID.fullmatch(provider_id)
    if match is None:
        raise ValueError(f"spec.providerID is {provider_id!r}: expected aws:///ZONE/i-0123456789abcdef0")
    return match[1]


def _destination(network: Network) -> dict[str, str]:
    key = "DestinationIpv6CidrBlock" if network.version == 6 else "DestinationCidrBlock"
    return {key: str(network)}


def _route(document: Mapping[str, Any], first: Mapping[str, str]) -> CloudRoute | None:
    """The route of a document; None for the destinations of a prefix list.

    The API names the interface of a route, an emulator sometimes only the instance, whose first interface is meant.
    """
    text = document.get("DestinationCidrBlock") or document.get("DestinationIpv6CidrBlock")
    if not text:
        return None
    target = document.get("NetworkInterfaceId") or first.get(document.get("InstanceId", ""), "")
    return CloudRoute(ip_network(text), target, document.get("State") == "blackhole")
