"""kube-proxy's configuration as an agent's."""

import pytest

from podwire.agent.kubeproxy import parse
from podwire.errors import ConfigError
from podwire.proxy.settings import ProxySettings, parse_settings

HEAD = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
KUBEADM = (
    HEAD
    + """
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: ""
  burst: 0
  contentType: ""
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
  qps: 0
clusterCIDR: 10.244.0.0/16,fd44::/48
configSyncPeriod: 0s
conntrack: {maxPerCore: null, min: null, tcpBeLiberal: false, tcpCloseWaitTimeout: null, tcpEstablishedTimeout: null,
            udpStreamTimeout: 0s, udpTimeout: 0s}
detectLocal: {bridgeInterface: "", interfaceNamePrefix: ""}
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables: {localhostNodePorts: null, masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
ipvs: {excludeCIDRs: null, minSyncPeriod: 0s, scheduler: "", strictARP: false, syncPeriod: 0s, tcpFinTimeout: 0s,
       tcpTimeout: 0s, udpTimeout: 0s}
logging: {flushFrequency: 0, options: {json: {infoBufferSize: "0"}, text: {infoBufferSize: "0"}}, verbosity: 0}
metricsBindAddress: ""
mode: ""
nftables: {masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel: {enableDSR: false, forwardHealthCheckVip: false, networkName: "", rootHnsEndpointName: "", sourceVip: ""}
"""
)


def settings(text: str) -> ProxySettings:
    result = parse(HEAD + text, "kp.yaml", "Node-1").config
    return parse_settings(result.proxy)


def test_what_kubeadm_writes() -> None:
    result = parse(KUBEADM, "kp.yaml", "Node-1")
    config = result.config
    assert (config.node_name, config.parts, config.settings) == ("node-1", ("proxy",), "")
    assert config.kubeconfig == "/var/lib/kube-proxy/kubeconfig.conf"
    assert config.cluster_cidrs == ("10.244.0.0/16", "fd44::/48")
    assert parse_settings(config.proxy) == ProxySettings(node_port_addresses=("0.0.0.0/0", "::/0"))
    assert result.without_meaning == ()


def test_settings_of_equal_names_are_used() -> None:
    result = settings(
        """
mode: iptables
detectLocalMode: BridgeInterface
detectLocal: {bridgeInterface: cni0}
nodePortAddresses: [192.168.0.0/16]
conntrack: {maxPerCore: 0, min: 5, tcpEstablishedTimeout: 2h, udpTimeout: 1m30s, tcpBeLiberal: true}
"""
    )
    assert (result.mode, result.pod_interface, result.node_port_addresses) == ("iptables", "cni0", ("192.168.0.0/16",))
    assert (result.conntrack.max_per_core, result.conntrack.min, result.conntrack.tcp_be_liberal) == (0, 5, True)
    assert (result.conntrack.tcp_established_timeout, result.conntrack.udp_timeout) == (7200, 90)


@pytest.mark.parametrize(
    ("mode", "bit", "every", "node_ports"),
    [
        ("", 3, True, ("0.0.0.0/0", "::/0")),
        ("iptables", 3, True, ("0.0.0.0/0", "::/0")),
        ("nftables", 5, False, ("primary",)),
    ],
)
def test_the_mode_has_settings_of_its_own(mode: str, bit: int, every: bool, node_ports: tuple[str, ...]) -> None:
    text = "iptables: {masqueradeBit: 3, masqueradeAll: true}\nnftables: {masqueradeBit: 5}\n"
    result = settings(f"{text}mode: {mode!r}\n")
    assert result.mode == (mode or ProxySettings().mode)
    assert (result.masquerade_bit, result.masquerade_all, result.node_port_addresses) == (bit, every, node_ports)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1", ("10.0.0.1", 10256)),
        ("10.0.0.1:80", ("10.0.0.1", 80)),
        ("'::'", ("::", 10256)),
        ("'[::]'", ("::", 10256)),
        ("'[::]:80'", ("::", 80)),
    ],
)
def test_an_address_may_be_without_a_port(text: str, expected: tuple[str, int]) -> None:
    assert settings(f"healthzBindAddress: {text}").healthz == expected


def test_settings_of_podwire_s_own_may_stand_in_it() -> None:
    assert settings("resetConnections: true").reset_connections


def test_settings_of_each_mode_are_read_from_its_section() -> None:
    result = settings(
        "mode: ipvs\nipvs: {scheduler: lc, strictARP: true, excludeCIDRs: [10.0.0.0/8], tcpTimeout: 15m0s}\n"
        "iptables: {localhostNodePorts: false, masqueradeBit: 4}\n"
    )
    assert (result.mode, result.masquerade_bit, result.iptables.localhost_node_ports) == ("ipvs", 4, False)
    assert (result.ipvs.scheduler, result.ipvs.strict_arp, result.ipvs.tcp_timeout) == ("lc", True, 900)


def test_the_metrics_have_another_port() -> None:
    assert settings("metricsBindAddress: 0.0.0.0").metrics == ("0.0.0.0", 10249)


def test_on_a_node_of_ipv6_pages_are_answered_there() -> None:
    result = settings("bindAddress: '::'\nmetricsBindAddress: 127.0.0.1")
    assert (result.healthz, result.metrics) == (("::", 10256), ("127.0.0.1", 10249))
    assert settings("bindAddress: fd00::1").metrics == ("::1", 10249)
    assert settings("bindAddress: 0.0.0.0").healthz == ("0.0.0.0", 10256)


def test_names_and_gates() -> None:
    text = HEAD + "hostnameOverride: ' Other '\nfeatureGates: {AllowServiceExternalIPs: false, Else: true}\n"
    result = parse(text, "kp.yaml", "node-1")
    assert result.config.node_name == "other"
    assert parse_settings(result.config.proxy).allow_external_ips is False
    assert result.without_meaning == ("featureGates.Else",)
    periods = parse(HEAD + "iptables: {syncPeriod: 5s}\noomScoreAdj: -998\n", "kp.yaml", "node-1")
    assert periods.without_meaning == ("iptables.syncPeriod",)
    assert parse_settings(periods.config.proxy).oom_score_adj == -998


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("nodeName: a", "kp.yaml: kind: expected KubeProxyConfiguration of kubeproxy.config.k8s.io/v1alpha1"),
        ("[", "kp.yaml:1: not YAML"),
        (HEAD + "mode: kernelspace", "kp.yaml: mode: 'kernelspace' is not a mode of Linux"),
        (HEAD + "sockets: 5", "kp.yaml: sockets: is not a field of KubeProxyConfiguration"),
        (HEAD + "conntrack: {maxx: 5}", "kp.yaml: conntrack.maxx: is not a field"),
        (HEAD + "conntrack: {min: many}", "kp.yaml: conntrack.min: expected a whole number"),
        (HEAD + "clusterCIDR: ten", "kp.yaml: clusterCIDR: 'ten' does not appear to be"),
        (HEAD + "detectLocalMode: BridgeInterface", "kp.yaml: detectLocal.bridgeInterface: '' is not a device name"),
        (HEAD + "nodePortAddresses: [ten]", "kp.yaml: nodePortAddresses: 'ten' does not appear to be"),
        (HEAD + "iptables: {masqueradeBit: 31}", "kp.yaml: masqueradeBit: 31 is not between 0 and 29"),
    ],
)
def test_invalid_kube_proxy_configuration_is_an_error_with_its_field(text: str, arguments: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "kp.yaml", "node-1")
    assert str(caught.value).startswith(arguments)
