"""Addresses of elastic network interfaces (ENI) for pods, laid out as Alibaba's Terway does.

The vSwitch of an interface is its subnet, whose router has the third address from the end in both families.

Marks: the tag ``podwire.io/cluster/<cluster>`` of an interface, whose value is the instance, and ``podwire.io/index``
with the number of the interface at its instance, because the API has no such number; both tables and rules of the node
need it. The second tag is written before the interface is attached.

An interface is attached some seconds after the call; until then the provider waits, :data:`ATTACH_S` at most, because
the API gives no addresses to an interface that is on its way.

Cost: a call for 100 instances, one for 100 marked interfaces, one each for 10 new types and for a new vSwitch when the
state is read; four calls for a new interface, and one for ten addresses or prefixes of it.
Sources: the ECS and VPC API references; the facts about vSwitches are those of Terway.
"""

import re
import threading
from collections.abc import Collection, Mapping
from ipaddress import ip_network
from typing import Any, NamedTuple

import msgspec

from podwire.cluster.names import CLOUD_INDEX, CLOUD_MARK
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
from podwire.controllers.cloudroutes.providers.alibaba.api import ECS, VPC, AlibabaApi, listed
from podwire.controllers.cloudroutes.providers.alibaba.instances import (
    INTERFACES,
    describe_instances,
    instance_of,
    marked_interfaces,
    tag_of,
)
from podwire.controllers.cloudroutes.providers.alibaba.options import AlibabaOptions
from podwire.controllers.cloudroutes.settings import CloudSettings
from podwire.errors import CloudError

ATTACH_S, _POLL_S = 20, 1.0
_TYPES_AT_ONCE = 10
_INSTANCE = re.compile(r"i-[0-9a-z]+")
_GONE = ("InvalidEniId.NotFound", "InvalidEcsId.NotFound")
_WRONG_STATE = "InvalidOperation.InvalidEniState"
_ROUTER = -3
"""The address of a vSwitch's router, counted from the end."""
_FOREIGN_INDEX = 1000
"""The first number for interfaces of others, which the API does not number; above those of podwire."""
_ASSIGN = {
    4: ("AssignPrivateIpAddresses", "SecondaryPrivateIpAddressCount", "Ipv4PrefixCount"),
    6: ("AssignIpv6Addresses", "Ipv6AddressCount", "Ipv6PrefixCount"),
}
"""By IP version: the call that gives an interface addresses, and its parameters for single ones and for prefixes."""
_ASSIGNED_AT_ONCE = 10
"""What one call gives at most; the next run of the plan adds the rest."""


class _Vswitch(NamedTuple):
    """The ranges of a vSwitch; the one of IPv6 is empty where it has none."""

    four: str
    six: str = ""


class AlibabaAddresses:
    """Interfaces of the instances of a VPC, with addresses for pods."""

    name = "alibaba"
    options: type[msgspec.Struct] = AlibabaOptions

    def __init__(self, settings: CloudSettings, options: AlibabaOptions) -> None:
        """Raises: ConfigError when the region or the credentials are missing."""
        self._mark = CLOUD_MARK + settings.cluster
        self._ipv6 = settings.ipv6
        self._types: dict[str, InterfaceRoom] = {}
        self._vswitches: dict[str, _Vswitch] = {}
        self._pause = threading.Event()
        self.api = AlibabaApi(options)

    def instance(self, provider_id: str) -> str:
        """The instance of a ``spec.providerID``.

        Raises: ValueError with the expected form.
        """
        return instance_of(provider_id)

    def read(self, instances: Collection[str]) -> AddressState:
        """The instances, all marked interfaces, and the networks of the VPCs.

        Raises: CloudUnavailable; CloudError.
        """
        documents = {document["InstanceId"]: document for document in describe_instances(self.api, instances)}
        self._learn_types({document["InstanceType"] for document in documents.values()})
        documents_of_mark = marked_interfaces(self.api, self._mark)
        marked = [document for document in documents_of_mark if _INSTANCE.fullmatch(tag_of(document, self._mark))]
        used = {document["VpcAttributes"].get("VSwitchId", "") for document in documents.values()}
        self._learn_vswitches({document["VSwitchId"] for document in marked} | used - {""})
        numbers = {document["NetworkInterfaceId"]: self._index(document) for document in marked}
        return AddressState(
            {name: self._instance(document, numbers) for name, document in documents.items()},
            tuple(self._interface(document) for document in marked),
            self._networks({document["VpcAttributes"]["VpcId"] for document in documents.values()}),
        )

    def apply(self, change: AddressChange) -> None:
        """Makes one change.

        Raises: CloudUnavailable; CloudError.
        """
        if isinstance(change, CreateInterface):
            self.api.call(
                ECS,
                "CreateNetworkInterface",
                VSwitchId=change.subnet,
                SecurityGroupIds=change.groups,
                Description=f"pods of {change.instance} (podwire)",
                Tag=[{"Key": self._mark, "Value": change.instance}],
            )
        elif isinstance(change, AttachInterface):
            self._attach(change)
        elif isinstance(change, AssignAddresses):
            action, single, whole = _ASSIGN[change.version]
            count = {whole if change.prefixes else single: min(change.count, _ASSIGNED_AT_ONCE)}
            self.api.call(ECS, action, NetworkInterfaceId=change.interface, **count)
        else:
            self._remove(change.interface, delete=isinstance(change, DeleteInterface))

    def _attach(self, change: AttachInterface) -> None:
        tag = {"ResourceType": "eni", "ResourceId": [change.interface]}
        self.api.call(ECS, "TagResources", **tag, Tag=[{"Key": CLOUD_INDEX, "Value": change.index}])
        try:
            ends = {"NetworkInterfaceId": change.interface, "InstanceId": change.instance}
            self.api.call(ECS, "AttachNetworkInterface", **ends)
        except CloudError as refusal:
            if refusal.code != _WRONG_STATE:
                raise  # Else another controller was first, and the next reading shows it.
        for _ in range(ATTACH_S):
            document = self._read_interface(change.interface)
            if document is None or document.get("Status") == "InUse":
                return
            self._pause.wait(_POLL_S)

    def _read_interface(self, interface: str) -> dict[str, Any] | None:
        answer = self.api.call(ECS, "DescribeNetworkInterfaces", NetworkInterfaceId=[interface], MaxResults=10)
        return next(iter(listed(answer, INTERFACES)), None)

    def _remove(self, interface: str, *, delete: bool) -> None:
        try:
            if delete:
                self.api.call(ECS, "DeleteNetworkInterface", NetworkInterfaceId=interface)
                return
            document = self._read_interface(interface)
            if document is not None and document.get("InstanceId"):
                ends = {"NetworkInterfaceId": interface, "InstanceId": document["InstanceId"]}
                self.api.call(ECS, "DetachNetworkInterface", **ends)
        except CloudError as refusal:
            if refusal.code not in _GONE:
                raise

    def _instance(self, document: Mapping[str, Any], numbers: Mapping[str, int]) -> Instance:
        own = listed(dict(document), "NetworkInterfaces.NetworkInterface")
        further = sorted(item["NetworkInterfaceId"] for item in own if item.get("Type") != "Primary")
        foreign = (name for name in further if not numbers.get(name))
        indexes = [0, *(numbers[name] for name in further if numbers.get(name))]
        indexes += [_FOREIGN_INDEX + at for at, _ in enumerate(foreign)]
        room = self._types.get(document["InstanceType"], InterfaceRoom())
        vswitch = self._vswitches.get(document["VpcAttributes"].get("VSwitchId", ""))
        return Instance(
            id=document["InstanceId"],
            subnet=document["VpcAttributes"].get("VSwitchId", ""),
            groups=tuple(listed(dict(document), "SecurityGroupIds.SecurityGroupId")),
            indexes=tuple(indexes),
            interfaces_max=room.interfaces,
            addresses_max=room.four,
            addresses6_max=room.six if vswitch is not None and vswitch.six else 0,
        )

    def _index(self, document: Mapping[str, Any]) -> int:
        """The number of an interface at its instance; 0 while it is not attached."""
        attached = document.get("Status") in ("Attaching", "InUse")
        number = tag_of(document, CLOUD_INDEX)
        return int(number) if attached and number.isdecimal() else 0

    def _interface(self, document: Mapping[str, Any]) -> MarkedInterface:
        vswitch = self._vswitches[document["VSwitchId"]]
        subnet, of = ip_network(vswitch.four), dict(document)
        addresses = listed(of, "PrivateIpSets.PrivateIpSet")
        pods = [item["PrivateIpAddress"] for item in addresses if not item.get("Primary")]
        pods += [item["Ipv4Prefix"] for item in listed(of, "Ipv4PrefixSets.Ipv4PrefixSet")]
        six = [item["Ipv6Address"] for item in listed(of, "Ipv6Sets.Ipv6Set")]
        six += [item["Ipv6Prefix"] for item in listed(of, "Ipv6PrefixSets.Ipv6PrefixSet")]
        return MarkedInterface(
            id=document["NetworkInterfaceId"],
            instance=tag_of(document, self._mark),
            mac=document["MacAddress"],
            address=f"{document['PrivateIpAddress']}/{subnet.prefixlen}",
            gateway=str(subnet[_ROUTER]),
            index=self._index(document),
            pods=tuple(pods),
            gateway6=str(ip_network(vswitch.six)[_ROUTER]) if vswitch.six else "",
            pods6=tuple(six),
        )

    def _learn_types(self, names: Collection[str]) -> None:
        unknown = sorted(set(names) - self._types.keys())
        for at in range(0, len(unknown), _TYPES_AT_ONCE):
            chosen = {"InstanceTypes": unknown[at : at + _TYPES_AT_ONCE], "MaxResults": _TYPES_AT_ONCE}
            for item in self.api.pages(ECS, "DescribeInstanceTypes", "InstanceTypes.InstanceType", **chosen):
                four, six = item.get("EniPrivateIpAddressQuantity", 0), item.get("EniIpv6AddressQuantity", 0)
                self._types[item["InstanceTypeId"]] = InterfaceRoom(item.get("EniQuantity", 0), four, six)

    def _learn_vswitches(self, names: Collection[str]) -> None:
        known = self._vswitches
        for name in sorted(names):
            if name in known and (known[name].six or not self._ipv6):
                continue  # A vSwitch may get a range of IPv6 later.
            answer = self.api.call(VPC, "DescribeVSwitches", VSwitchId=name)
            for item in listed(answer, "VSwitches.VSwitch"):
                known[item["VSwitchId"]] = _Vswitch(item["CidrBlock"], item.get("Ipv6CidrBlock") or "")

    def _networks(self, vpcs: Collection[str]) -> tuple[str, ...]:
        if not vpcs:
            return ()
        networks: set[str] = set()
        for item in self.api.numbered_pages(VPC, "DescribeVpcs", "Vpcs.Vpc", VpcId=",".join(sorted(vpcs))):
            networks |= {item["CidrBlock"], *listed(item, "SecondaryCidrBlocks.SecondaryCidrBlock")}
            networks |= {block["Ipv6CidrBlock"] for block in listed(item, "Ipv6CidrBlocks.Ipv6CidrBlock")}
            networks |= {item["Ipv6CidrBlock"]} if item.get("Ipv6CidrBlock") else set()
        return tuple(sorted(networks))
