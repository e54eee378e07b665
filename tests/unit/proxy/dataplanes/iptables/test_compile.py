"""Rules of one Service, whole, as text."""

from typing import Any

from podwire.proxy.dataplanes.iptables.compile import Compiled, compile_service
from podwire.proxy.dataplanes.iptables.layout import IptablesLayout
from podwire.proxy.frontends import Frontend, frontends
from podwire.proxy.servicemap import NodeFacts, ResolvedEndpoint, ResolvedPort

FACTS = NodeFacts(name="n1", addresses=("192.168.99.1",), pod_cidrs=("10.180.0.0/16", "fd18::/16"))
ONE, TWO = ResolvedEndpoint("10.180.0.1", 8080, True), ResolvedEndpoint("10.180.0.2", 8080)
SVC, EXT, SVL, FW = (f"KUBE-{kind}-CDGGSHYLG3RE2FKL" for kind in ("SVC", "EXT", "SVL", "FW"))
SEP_ONE, SEP_TWO = "KUBE-SEP-7WW7JE3MKVJF5U6Q", "KUBE-SEP-R377EZRFZZ6RNEZZ"


def port(**changes: Any) -> ResolvedPort:
    known: dict[str, Any] = {
        "service": "default/web",
        "port_name": "http",
        "protocol": "tcp",
        "family": "ip",
        "port": 80,
        "cluster_ip": "172.30.0.41",
        "cluster_endpoints": (ONE, TWO),
        "local_endpoints": (ONE,),
        "has_endpoints": True,
    }
    return ResolvedPort(**{**known, **changes})


def compiled(resolved_port: ResolvedPort, facts: NodeFacts = FACTS) -> Compiled:
    return compile_service(IptablesLayout(resolved_port.family, facts), (resolved_port,), frontends(resolved_port))


def text(result: Compiled) -> str:
    lines = [f"{table} {chain}: {rule}" for (table, chain), rules in result.shared.items() for rule in rules]
    lines += [f"{chain}: {rule}" for chain, rules in result.chains.items() for rule in rules]
    return "\n".join(line.replace(" -m comment --comment", "") for line in lines)


def test_a_cluster_ip() -> None:
    assert (
        text(compiled(port()))
        == f"""\
filter KUBE-CLUSTER-IPS: -d 172.30.0.41/32 "default/web" -g KUBE-REFUSE
nat KUBE-SERVICES: -d 172.30.0.41/32 -p tcp -m tcp --dport 80 "default/web:http cluster IP" -j {SVC}
{SEP_ONE}: -s 10.180.0.1/32 "default/web:http" -j KUBE-MARK-MASQ
{SEP_ONE}: -p tcp "default/web:http" -m tcp -j DNAT --to-destination 10.180.0.1:8080
{SEP_TWO}: -s 10.180.0.2/32 "default/web:http" -j KUBE-MARK-MASQ
{SEP_TWO}: -p tcp "default/web:http" -m tcp -j DNAT --to-destination 10.180.0.2:8080
{SVC}: ! -s 10.180.0.0/16 -d 172.30.0.41/32 -p tcp -m tcp --dport 80 "default/web:http cluster IP" -j KUBE-MARK-MASQ
{SVC}: "default/web:http -> 10.180.0.1:8080" -m statistic --mode random --probability 0.50000000000 -j {SEP_ONE}
{SVC}: "default/web:http -> 10.180.0.2:8080" -j {SEP_TWO}"""
    )


def test_a_node_port() -> None:
    result = compiled(port(node_port=30080))
    assert f'nat KUBE-NODEPORTS: -p tcp -m tcp --dport 30080 "default/web:http" -j {EXT}' in text(result)
    assert result.chains[EXT] == (
        '-m comment --comment "masquerade traffic for default/web:http external destinations" -j KUBE-MARK-MASQ',
        f"-j {SVC}",
    )


def test_local_frontend_has_shortcuts_for_pods_and_node() -> None:
    result = text(compiled(port(external_ips=("203.0.113.7",), external_local=True)))
    name = "default/web:http external destinations"
    assert (
        f"""
{EXT}: -s 10.180.0.0/16 "pod traffic for {name}" -j {SVC}
{EXT}: "masquerade LOCAL traffic for {name}" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ
{EXT}: "route LOCAL traffic for {name}" -m addrtype --src-type LOCAL -j {SVC}
{EXT}: -j {SVL}"""
        in result
    )
    assert f'{SVL}: "default/web:http -> 10.180.0.1:8080" -j {SEP_ONE}' in result


def test_without_local_endpoints_a_local_frontend_drops() -> None:
    result = text(compiled(port(node_port=30080, external_local=True, local_endpoints=())))
    where = (
        'filter KUBE-EXTERNAL-SERVICES: -p tcp "default/web:http has no local endpoints" -m addrtype --dst-type LOCAL'
    )
    assert f"{where} -m tcp --dport 30080 -j DROP" in result
    assert SVL not in result


def test_without_endpoints_all_is_refused() -> None:
    item = port(has_endpoints=False, cluster_endpoints=(), local_endpoints=(), external_ips=("203.0.113.7",))
    reset = '-m tcp --dport 80 "default/web:http has no endpoints" -j REJECT --reject-with tcp-reset'
    assert (
        text(compiled(item))
        == f"""\
filter KUBE-CLUSTER-IPS: -d 172.30.0.41/32 "default/web" -g KUBE-REFUSE
filter KUBE-SERVICES: -d 172.30.0.41/32 -p tcp {reset}
filter KUBE-EXTERNAL-SERVICES: -d 203.0.113.7/32 -p tcp {reset}"""
    )


def test_an_internal_policy_local_has_a_chain_of_its_own() -> None:
    result = compiled(port(internal_local=True))
    assert SVC not in result.chains
    assert result.chains[SVL][0].startswith("! -s 10.180.0.0/16 -d 172.30.0.41/32 -p tcp")
    assert SEP_TWO not in result.chains
    away = text(compiled(port(internal_local=True, local_endpoints=())))
    assert '-d 172.30.0.41/32 -p tcp -m tcp --dport 80 "default/web:http has no local endpoints" -j DROP' in away


def test_affinity_asks_every_list_first() -> None:
    result = compiled(port(affinity_s=600))
    recent = "--name KUBE-SEP-7WW7JE3MKVJF5U6Q --mask 255.255.255.255 --rsource"
    arrow = '-m comment --comment "default/web:http -> 10.180.0.1:8080"'
    assert result.chains[SVC][1] == f"{arrow} -m recent --rcheck --seconds 600 --reap {recent} -j {SEP_ONE}"
    assert f" -m recent --set {recent} -m tcp -j DNAT " in result.chains[SEP_ONE][1]
    assert len(result.chains[SVC]) == 5


def test_source_ranges_stand_before_a_load_balancer_address() -> None:
    ranges = ("192.168.99.0/24", "198.51.100.0/24")
    item = port(load_balancer_ips=("203.0.113.8",), source_ranges=ranges)
    result = text(compiled(item))
    assert (
        f'nat KUBE-SERVICES: -d 203.0.113.8/32 -p tcp -m tcp --dport 80 "default/web:http loadbalancer IP" -j {FW}'
        in result
    )
    unaccepted = f'-m tcp --dport 80 "default/web:http traffic not accepted by {FW}" -j DROP'
    assert f"filter KUBE-PROXY-FIREWALL: -d 203.0.113.8/32 -p tcp {unaccepted}" in result
    allowed = [line for line in result.splitlines() if line.startswith(f"{FW}: ")]
    sources = [line.split()[2] for line in allowed]
    assert sources == ["192.168.99.0/24", "198.51.100.0/24", "203.0.113.8/32"], "the node may use its own address"


def test_pods_are_recognized_by_device() -> None:
    facts = NodeFacts(name="n1", pod_interface="veth*")
    result = compiled(port(external_ips=("203.0.113.7",), external_local=True), facts)
    assert result.chains[SVC][0].startswith("-d 172.30.0.41/32 ! -i veth+ -p tcp ")
    assert result.chains[EXT][0].startswith("-i veth+ -m comment ")


def test_without_pod_ranges_no_client_is_masqueraded() -> None:
    result = compiled(port(), NodeFacts(name="n1"))
    assert not any("KUBE-MARK-MASQ" in rule for rule in result.chains[SVC])
    many = compiled(port(), NodeFacts(name="n1", pod_cidrs=("10.1.0.0/16", "10.2.0.0/16")))
    assert many.chains[SVC][0].endswith("-j KUBE-MARK-OUTSIDE")
    everyone = compiled(port(), NodeFacts(name="n1", pod_cidrs=("10.1.0.0/16",), masquerade_all=True))
    assert everyone.chains[SVC][0].startswith("-d 172.30.0.41/32 -p tcp")


def test_the_second_family() -> None:
    item = port(
        family="ip6", cluster_ip="fd96::10", cluster_endpoints=(ResolvedEndpoint("fd18::1", 8080),), protocol="udp"
    )
    result = text(compiled(item))
    assert "-d fd96::10/128 -p udp" in result
    assert "-m udp -j DNAT --to-destination [fd18::1]:8080" in result


def test_probabilities_are_as_the_kernel_keeps_them() -> None:
    three = tuple(ResolvedEndpoint(f"10.180.0.{n}", 8080) for n in (1, 2, 3))
    rules = compiled(port(cluster_endpoints=three)).chains[SVC][1:]
    assert [rule.partition("--probability ")[2].partition(" ")[0] for rule in rules] == [
        "0.33333333349",
        "0.50000000000",
        "",
    ]


def test_the_health_check_port_is_open() -> None:
    result = text(compiled(port(health_check_node_port=32000)))
    assert (
        'filter KUBE-NODEPORTS: -p tcp "default/web:http health check node port" -m tcp --dport 32000 -j ACCEPT'
        in result
    )


def test_a_frontend_of_another_service_is_left_alone() -> None:
    item = port(external_ips=("203.0.113.7",), node_port=30080)
    owned = frozenset((Frontend("172.30.0.41", "tcp", 80),))
    result = text(compile_service(IptablesLayout("ip", FACTS), (item,), owned))
    assert "203.0.113.7" not in result and "30080" not in result
    assert "nat KUBE-SERVICES: -d 172.30.0.41/32" in result
