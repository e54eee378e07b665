"""Secondary addresses, prefixes and IPv6 of elastic network interfaces (ENI) for pods, as AWS's VPC plugin uses them.

Marks: the tag ``podwire.io/cluster/<cluster>`` of an interface, whose value is the instance; an interface is created
together with it. An interface that the controller does not know to have made does not exist for it. The source check
of the interfaces stays on, because packets have the addresses of the interface by which they leave. The router of every
subnet answers to ``fe80:ec2::1`` by IPv6.

Cost: a call for the instances (100 at once), one each for marked interfaces, their subnets, the networks and instance
types when the state is read; three calls for a new interface.
Sources: "Elastic network interfaces", "IP addresses per network interface per instance type" and "Assigning prefixes to
network interfaces" of the EC2 user guide, "Subnet sizing for IPv6" of the VPC user guide.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from ipaddress import ip_network
from typing import Any, NamedTuple

import msgspec

from podwire.cluster.names import CLOUD_MARK
from podwire.controllers.cloudaddresses.provider import (
    AddressChange,
    AddressState,
    AssignAddresses,
    AttachInterface,
    CreateInterface,
    DeleteInterface,
    Instance,
    InterfaceRoom,
    MarkedInterface,
)
from podwire.controllers.cloudroutes.providers.aws.ec2 import Ec2
from podwire.controllers.cloudroutes.providers.aws.options import AwsOptions
from podwire.controllers.cloudroutes.providers.aws.provider import instance_of
from podwire.controllers.cloudroutes.settings import CloudSettings
from podwire.errors import CloudError

_AT_ONCE = 100
_INSTANCE = re.compile(r"i-[0-9a-f]+")
_ROUTER6 = "fe80:ec2::1"
_ASSIGN = {
    4: ("assign_private_ip_addresses", "SecondaryPrivateIpAddressCount", "Ipv4PrefixCount"),
    6: ("assign_ipv6_addresses", "Ipv6AddressCount", "Ipv6PrefixCount"),
}
"""By IP version: the call that gives an interface addresses, and its parameters for single ones and for prefixes."""


class _Subnet(NamedTuple):
    """The range of a subnet, and whether it has one of IPv6."""

    four: str
    six: bool


class AwsAddresses:
    """Interfaces of the instances of a VPC, with addresses for pods."""

    name = "aws"
    options: type[msgspec.Struct] = AwsOptions

    def __init__(self, settings: CloudSettings, options: AwsOptions) -> None:
        """Raises: ConfigError when boto3, the region or the credentials are missing."""
        self._mark = CLOUD_MARK + settings.cluster
        self._ipv6 = settings.ipv6
        self._types: dict[str, InterfaceRoom] = {}
        self._subnets: dict[str, _Subnet] = {}
        self.ec2 = Ec2(options)

    def instance(self, provider_id: str) -> str:
        """The instance of a ``spec.providerID``.

        Raises: ValueError with the expected form.
        """
        return instance_of(provider_id)

    def read(self, instances: Collection[str]) -> AddressState:
        """The instances, all marked interfaces, and the networks of the VPCs.

        Raises: CloudUnavailable; CloudError.
        """
        documents = {document["InstanceId"]: document for document in self._instances(instances)}
        self._learn_types({document["InstanceType"] for document in documents.values()})
        marked = list(self._interfaces())
        self._learn_subnets({document.get("SubnetId", "") for document in (*documents.values(), *marked)} - {""})
        return AddressState(
            {name: self._instance(document) for name, document in documents.items()},
            tuple(self._interface(document) for document in marked),
            self._networks({document["VpcId"] for document in documents.values()}),
        )

    def apply(self, change: AddressChange) -> None:
        """Makes one change.

        Raises: CloudUnavailable; CloudError.
        """
        if isinstance(change, CreateInterface):
            tag = {"Key": self._mark, "Value": change.instance}
            self.ec2.call(
                "create_network_interface",
                SubnetId=change.subnet,
                Groups=list(change.groups),
                Description=f"pods of {change.instance} (podwire)",
                TagSpecifications=[{"ResourceType": "network-interface", "Tags": [tag]}],
            )
        elif isinstance(change, AttachInterface):
            place = {"InstanceId": change.instance, "DeviceIndex": change.index}
            self.ec2.call("attach_network_interface", NetworkInterfaceId=change.interface, **place)
        elif isinstance(change, AssignAddresses):
            operation, single, whole = _ASSIGN[change.version]
            count = {whole if change.prefixes else single: change.count}
            self.ec2.call(operation, NetworkInterfaceId=change.interface, **count)
        else:
            self._remove(change.interface, delete=isinstance(change, DeleteInterface))

    def _remove(self, interface: str, *, delete: bool) -> None:
        try:
            if delete:
                self.ec2.call("delete_network_interface", NetworkInterfaceId=interface)
                return
            for document in self._interfaces():
                if document["NetworkInterfaceId"] == interface and (attachment := document.get("Attachment")):
                    self.ec2.call("detach_network_interface", AttachmentId=attachment["AttachmentId"])
        except CloudError as refusal:
            if refusal.code != "InvalidNetworkInterfaceID.NotFound":
                raise

    def _instances(self, instances: Collection[str]) -> Iterator[dict[str, Any]]:
        names = sorted(instances)
        alive = {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]}
        for at in range(0, len(names), _AT_ONCE):
            chosen = [{"Name": "instance-id", "Values": names[at : at + _AT_ONCE]}, alive]
            for reservation in self.ec2.pages("describe_instances", "Reservations", Filters=chosen):
                yield from reservation["Instances"]

    def _instance(self, document: Mapping[str, Any]) -> Instance:
        interfaces = document.get("NetworkInterfaces", ())
        numbers = tuple(sorted(interface["Attachment"]["DeviceIndex"] for interface in interfaces))
        room = self._types.get(document["InstanceType"], InterfaceRoom())
        subnet = self._subnets.get(document.get("SubnetId", ""))
        return Instance(
            id=document["InstanceId"],
            subnet=document.get("SubnetId", ""),
            groups=tuple(group["GroupId"] for group in document.get("SecurityGroups", ())),
            indexes=numbers,
            interfaces_max=room.interfaces,
            addresses_max=room.four,
            addresses6_max=room.six if subnet is not None and subnet.six else 0,
        )

    def _learn_types(self, types: Collection[str]) -> None:
        if unknown := sorted(set(types) - self._types.keys()):
            for document in self.ec2.pages("describe_instance_types", "InstanceTypes", InstanceTypes=unknown):
                network = document["NetworkInfo"]
                six = network.get("Ipv6AddressesPerInterface", 0) if network.get("Ipv6Supported") else 0
                room = InterfaceRoom(network["MaximumNetworkInterfaces"], network["Ipv4AddressesPerInterface"], six)
                self._types[document["InstanceType"]] = room

    def _learn_subnets(self, subnets: Collection[str]) -> None:
        known = self._subnets
        # A subnet may get a range of IPv6 later.
        unknown = sorted(name for name in subnets if name not in known or (self._ipv6 and not known[name].six))
        if unknown:
            for document in self.ec2.pages("describe_subnets", "Subnets", SubnetIds=unknown):
                six = _associated(document, "Ipv6CidrBlock")
                known[document["SubnetId"]] = _Subnet(document["CidrBlock"], bool(six))

    def _networks(self, vpcs: Collection[str]) -> tuple[str, ...]:
        if not vpcs:
            return ()
        live: set[str] = set()
        for document in self.ec2.pages("describe_vpcs", "Vpcs", VpcIds=sorted(vpcs)):
            live |= _associated(document, "CidrBlock") | _associated(document, "Ipv6CidrBlock")
        return tuple(sorted(live))

    def _interfaces(self) -> Iterator[dict[str, Any]]:
        chosen = [{"Name": "tag-key", "Values": [self._mark]}]
        for document in self.ec2.pages("describe_network_interfaces", "NetworkInterfaces", Filters=chosen):
            if _INSTANCE.fullmatch(self._owner(document)):
                yield document

    def _owner(self, document: Mapping[str, Any]) -> str:
        return next((str(tag["Value"]) for tag in document.get("TagSet", ()) if tag["Key"] == self._mark), "")

    def _interface(self, document: Mapping[str, Any]) -> MarkedInterface:
        known = self._subnets[document["SubnetId"]]
        subnet = ip_network(known.four)
        attachment = document.get("Attachment") or {}
        further = [item["PrivateIpAddress"] for item in document["PrivateIpAddresses"] if not item["Primary"]]
        further += [item["Ipv4Prefix"] for item in document.get("Ipv4Prefixes", ())]
        six = [item["Ipv6Address"] for item in document.get("Ipv6Addresses", ())]
        six += [item["Ipv6Prefix"] for item in document.get("Ipv6Prefixes", ())]
        return MarkedInterface(
            id=document["NetworkInterfaceId"],
            instance=self._owner(document),
            mac=document["MacAddress"],
            address=f"{document['PrivateIpAddress']}/{subnet.prefixlen}",
            gateway=str(subnet[1]),
            index=attachment.get("DeviceIndex", 0) if attachment.get("Status") != "detaching" else 0,
            pods=tuple(further),
            gateway6=_ROUTER6 if known.six else "",
            pods6=tuple(six),
        )


def _associated(document: Mapping[str, Any], key: str) -> set[str]:
    """The ranges of a VPC or subnet that are in use; ``key`` is ``CidrBlock`` or ``Ipv6CidrBlock``."""
    blocks = document.get(f"{key}AssociationSet", ())
    return {block[key] for block in blocks if block[f"{key}State"]["State"] == "associated"}
