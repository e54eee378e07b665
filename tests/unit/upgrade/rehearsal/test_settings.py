"""The configuration of the copy."""

from typing import Any

import msgspec
import pytest
from tests.cases.upgrade_clusters import inventory

from podwire.errors import ConfigError
from podwire.local.config import ClusterConfig, check_config
from podwire.model.document import convert
from podwire.upgrade.plan.compose import make_plan
from podwire.upgrade.plan.targets import Targets
from podwire.upgrade.plan.versions import parse_target
from podwire.upgrade.rehearsal.objects import RehearsalSource
from podwire.upgrade.rehearsal.settings import (
    OwnCommand,
    configuration,
    known_differences,
    parse_commands,
    ranges_of,
)

INVENTORY = inventory("kubeadm")
PLAN = make_plan(INVENTORY, Targets(version=parse_target("1.36.1", "--to")))
SOURCE = RehearsalSource(inventory=INVENTORY, plan=PLAN)
OWN = OwnCommand(command=("python", "-m", "podwire.cli.main"), environment={"PYTHONPATH": "/b"})


def with_networking(text: str) -> Any:
    key = "kube-system/kubeadm-config"
    config_maps = {**INVENTORY.config_maps, key: {"ClusterConfiguration": f"networking: {text}"}}
    return msgspec.structs.replace(INVENTORY, config_maps=config_maps)


def test_the_copy_has_the_ranges_and_programs_of_the_cluster() -> None:
    commands = parse_commands(["flannel/flannel=./flanneld -v"])
    document = configuration(SOURCE, ranges_of(INVENTORY), 3, OWN, commands)
    config = convert(document, ClusterConfig, "the copy")
    check_config(config, "the copy")
    assert (config.nodes, config.pod_cidrs, config.service_cidrs) == (3, ("10.244.0.0/16",), ("10.96.0.0/12",))
    by_name = {entry.name: entry for entry in config.images}
    assert set(by_name) == {"podwire-rehearsal", "registry.k8s.io/coredns/coredns", "flannel/flannel"}
    assert by_name["registry.k8s.io/coredns/coredns"].env == {"PYTHONPATH": "/b"}
    assert by_name["flannel/flannel"].command == ("./flanneld", "-v")


@pytest.mark.parametrize(
    ("networking", "problem"),
    [
        ("{}", "the ranges of the cluster are not known"),
        (
            "{podSubnet: 10.88.0.0/14, serviceSubnet: 10.96.0.0/16}",
            "10.88.0.0/14 overlaps the fabric of local clusters",
        ),
        ("{podSubnet: 10.244.0.0/23, serviceSubnet: 10.96.0.0/16}", "10.244.0.0/23 has no /24 for each node"),
        ("{podSubnet: x, serviceSubnet: 10.96.0.0/16}", "'x' does not appear to be an IPv4 or IPv6 network"),
    ],
)
def test_ranges_that_a_local_cluster_cannot_have_are_named(networking: str, problem: str) -> None:
    ranges = ranges_of(with_networking(networking))
    assert (ranges.problem, ranges.pods) == (problem, ())
    assert known_differences(SOURCE, ranges, {})[0] == f"its ranges are the default: {problem}"


def test_differences_name_what_stands_in_for_a_component() -> None:
    texts = known_differences(SOURCE, ranges_of(INVENTORY), {})
    assert "CoreDNS is podwire's DNS server, which reads the same Corefile" in texts
    assert any(text.startswith("kube-proxy is the stand-in server") for text in texts)
    named = known_differences(SOURCE, ranges_of(INVENTORY), {"registry.k8s.io/coredns/coredns": ("/c",)})
    assert not any("CoreDNS" in text for text in named)


def test_a_program_needs_an_image_and_a_command() -> None:
    for text in ("coredns", "=x", "coredns="):
        with pytest.raises(ConfigError, match="--command: expected IMAGE=COMMAND"):
            parse_commands([text])
