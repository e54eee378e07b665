"""Secondary addresses of elastic network interfaces (ENI) for pods, as the VPC plugin of AWS uses them.

Marks: the tag ``podwire.io/cluster/<cluster>`` of an interface, whose value is the instance; an interface is created
together with it. An interface that the controller does not know to have made does not exist for it. The source check
of the interfaces stays on, because packets have the addresses of the interface by which they leave.

Cost: a call for the instances (100 at once), one each for marked interfaces, their subnets, the networks and instance
types when the state is read; three calls for a new interface.
Sources: "Elastic network interfaces" and "IP addresses per network interface per instance type" of the EC2 user guide.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from ipaddress import ip_network
from typing import Any

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
    MarkedInterface,
)
from podwire.controllers.cloudroutes.providers.aws.ec2 import Ec2
from podwire.controllers.cloudroutes.providers.aws.options import AwsOptions
from podwire.controllers.cloudroutes.providers.aws.provider import instance_of
from podwire.controllers.cloudroutes.settings import CloudSettings
from podwire.errors import CloudError

_AT_ONCE = 100
_INSTANCE = re.compile(r"i-[0-9a-f]+")


class AwsAddresses:
    """Interfaces of the instances of a VPC, with addresses for pods."""

    name = "aws"
    options: type[msgspec.Struct] = AwsOptions

    def __init__(self, settings: CloudSettings, options: AwsOptions) -> None:
        """Raises: ConfigError when boto3, the region or the credentials are missing."""
        self._mark = CLOUD_MARK + settings.cluster
        self._types: dict[str, tuple[int, int]] = {}
        self._subnets: dict[str, str] = {}
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
        self._learn_subnets({document["SubnetId"] for document in marked})
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
            count = {"SecondaryPrivateIpAddressCount": change.count}
            self.ec2.call("assign_private_ip_addresses", NetworkInterfaceId=change.interface, **count)
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
        interfaces_max, addresses_max = self._types.get(document["InstanceType"], (0, 0))
        return Instance(
            id=document["InstanceId"],
            subnet=document.get("SubnetId", ""),
            groups=tuple(group["GroupId"] for group in document.get("SecurityGroups", ())),
            indexes=numbers,
            interfaces_max=interfaces_max,
            addresses_max=addresses_max,
        )

    def _learn_types(self, types: Collection[str]) -> None:
        if unknown := sorted(set(types) - self._types.keys()):
            for document in self.ec2.pages("describe_instance_types", "InstanceTypes", InstanceTypes=unknown):
                network = document["NetworkInfo"]
                room = network["MaximumNetworkInterfaces"], network["Ipv4AddressesPerInterface"]
                self._types[document["InstanceType"]] = room

    def _learn_subnets(self, subnets: Collection[str]) -> None:
        if unknown := sorted(set(subnets) - self._subnets.keys()):
            for document in self.ec2.pages("describe_subnets", "Subnets", SubnetIds=unknown):
                self._subnets[document["SubnetId"]] = document["CidrBlock"]

    def _networks(self, vpcs: Collection[str]) -> tuple[str, ...]:
        if not vpcs:
            return ()
        documents = self.ec2.pages("describe_vpcs", "Vpcs", VpcIds=sorted(vpcs))
        blocks = (block for document in documents for block in document.get("CidrBlockAssociationSet", ()))
        live = {block["CidrBlock"] for block in blocks if block["CidrBlockState"]["State"] == "associated"}
        return tuple(sorted(live))

    def _interfaces(self) -> Iterator[dict[str, Any]]:
        chosen = [{"Name": "tag-key", "Values": [self._mark]}]
        for document in self.ec2.pages("describe_network_interfaces", "NetworkInterfaces", Filters=chosen):
            if _INSTANCE.fullmatch(self._owner(document)):
                yield document

    def _owner(self, document: Mapping[str, Any]) -> str:
        return next((str(tag["Value"]) for tag in document.get("TagSet", ()) if tag["Key"] == self._mark), "")

    def _interface(self, document: Mapping[str, Any]) -> MarkedInterface:
        subnet = ip_network(self._subnets[document["SubnetId"]])
        attachment = document.get("Attachment") or {}
        further = (address for address in document["PrivateIpAddresses"] if not address["Primary"])
        return MarkedInterface(
            id=document["NetworkInterfaceId"],
            instance=self._owner(document),
            mac=document["MacAddress"],
            address=f"{document['PrivateIpAddress']}/{subnet.prefixlen}",
            gateway=str(subnet[1]),
            index=attachment.get("DeviceIndex", 0) if attachment.get("Status") != "detaching" else 0,
            pods=tuple(address["PrivateIpAddress"] for address in further),
        )
