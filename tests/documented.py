"""The commands in the code blocks of README.md and docs/, and those that no test can run as they stand.

``tests/e2e/test_documented_commands.py`` runs all commands of a page, except those of :data:`NOT_RUN`. A new command on
a page is therefore tested, or it gets a reason here.
"""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
_COMMAND = re.compile(
    r"(podwire|kubectl|helm|make|curl|export|ip|nft|tcpdump|iptables-save|conntrack|scripts/uml|sudo) |source <"
)
"""How a line of a code block begins that is a command."""


class Documented(NamedTuple):
    """A command and its page, relative to the root."""

    page: str
    command: str


_README = "tests/e2e/test_what_a_user_sees.py runs the block of the README that has this command"
_KERNEL = "shows what the agent itself does in the kernel; nobody types it"
_SUITE = "runs the tests, of which this one is part"
_OWN_CLUSTER = "takes files of the reader's and clusters of its own; tests/e2e/test_conformance.py runs each option"
_GUEST_TUNNELS = "needs a device that many kernels lack; the routing tests with the marker uml read what it shows"
_IPVS = "needs the data plane ipvs, which many kernels lack; the tests with the marker uml use it"

NOT_RUN: dict[Documented, str] = {
    Documented(page, command): reason
    for reason, commands in {
        _SUITE: (
            ("README.md", "make setup fmt lint unit thorough kernel uml e2e bench"),
            ("docs/development.md", "make setup fmt lint unit thorough kernel uml e2e bench"),
            ("docs/development.md", "scripts/uml pytest tests/uml"),
            ("docs/development.md", 'scripts/uml pytest tests/kernel/test_proxy_scenarios.py -k "ipvs and hairpin"'),
            ("docs/development.md", "scripts/uml bash -c 'ip link add type dummy; ip -d link'"),
            ("docs/testing.md", "sudo .venv/bin/pytest examples/guarded/tests"),
            ("docs/conformance.md", "make conformance"),
            ("docs/conformance.md", 'make conformance SIGS="apps node"'),
        ),
        _GUEST_TUNNELS: (
            ("docs/backends/ipip.md", "ip -d link show podwire-ipip"),
            ("docs/backends/ipip.md", "tcpdump -ni eth0 'ip proto 4 or ip proto 41'"),
            ("docs/backends/geneve.md", "ip -d link show podwire-geneve"),
            ("docs/backends/vlan.md", "ip -d link show podwire-vlan-up"),
            ("docs/backends/vlan.md", "ip route show dev podwire-vlan"),
            ("docs/backends/vlan.md", "tcpdump -eni eth0 vlan 1000"),
            ("docs/backends/geneve.md", "tcpdump -ni eth0 udp port 6081"),
        ),
        "needs nodes with pod networks; tests/kernel/test_routing_trunk.py has some": (
            ("docs/backends/vlan.md", "ip rule show"),
            ("docs/backends/vlan.md", "ip route show table 20101"),
            ("docs/backends/vlan.md", "podwire why shop/web-0 svc/shop/db"),
            ("docs/backends/vlan.md", "ip rule show priority 1121"),
        ),
        "needs a pod with two interfaces; tests/kernel/test_cni_interfaces.py has some": (
            ("docs/cni.md", "ip route add default via 169.254.1.1 dev net1 onlink table 11200"),
        ),
        "needs a cluster with dns.kernel; tests/e2e/test_dns_node_local.py has one": (
            ("docs/bpf.md", "podwire state node-1 --part dns"),
            ("docs/bpf.md", "podwire state node-1 --part dns --diff"),
            ("docs/dns-kernel.md", "podwire state node-1 --part dns --diff"),
            ("docs/dns-kernel.md", "curl -s localhost:9440/metrics | grep podwire_dns_kernel"),
        ),
        "reads a file of the reader's; tests/unit/dns/corefile/test_settings.py reads many": (
            ("docs/dns.md", "podwire dns check Corefile"),
        ),
        "needs nodes with the backend bridge; tests/kernel/test_routing_segment.py has some": (
            ("docs/backends/bridge.md", "ip -d link show podwire-br-port"),
            ("docs/backends/bridge.md", "ip route show dev podwire-bridge"),
            ("docs/backends/bridge.md", "tcpdump -eni podwire-bridge"),
        ),
        "needs nodes with the backend macvlan; tests/kernel/test_routing_macvlan.py has some": (
            ("docs/backends/macvlan.md", "ip -d link show lan0"),
            ("docs/backends/macvlan.md", "ip route show dev lan0"),
            ("docs/backends/macvlan.md", "ip neighbour show dev lan0"),
            ("docs/backends/macvlan.md", "nft list table inet podwire-macvlan"),
        ),
        "needs nodes with the backend ipvlan; tests/kernel/test_routing_ipvlan.py has some": (
            ("docs/backends/ipvlan.md", "ip -d link show lan0"),
            ("docs/backends/ipvlan.md", "ip route show dev lan0"),
            ("docs/backends/ipvlan.md", "nft list table inet podwire-ipvlan"),
        ),
        "needs a cluster without a network; tests/e2e/test_chart.py installs the chart on one": (
            (
                "docs/install.md",
                "helm install podwire deploy/helm/podwire --namespace kube-system --set api.host=192.0.2.10",
            ),
            ("docs/install.md", "kubectl apply --server-side -f deploy/manifests/beside-kube-proxy.yaml"),
            (
                "docs/install.md",
                "helm upgrade podwire deploy/helm/podwire --namespace kube-system --reuse-values "
                "--set 'settings.routing\\.backend=hostgw'",
            ),
        ),
        "installs on a cluster without a network; tests/e2e/test_chart.py and test_chart_alone.py do so": (
            (
                "docs/install.md",
                "helm install podwire deploy/helm/podwire --set image.repository=registry.example.com/podwire ...",
            ),
            (
                "docs/install.md",
                "helm upgrade podwire deploy/helm/podwire --namespace kube-system --reuse-values "
                "--set dns.enabled=false --wait",
            ),
            ("docs/install.md", "helm uninstall podwire --namespace kube-system"),
            ("docs/install.md", "podwire install --chart deploy/helm/podwire --set api.host=192.0.2.10 --dry-run"),
            ("docs/install.md", "podwire install --chart deploy/helm/podwire --set api.host=192.0.2.10"),
            ("docs/install.md", "podwire install --manifest deploy/manifests/beside-kube-proxy.yaml"),
            ("docs/install.md", "podwire uninstall --objects --dry-run"),
            ("docs/install.md", "podwire uninstall --objects"),
            ("docs/install.md", "podwire uninstall --nodes"),
            ("docs/install.md", "podwire preflight --nodes"),
        ),
        "installs the gateway; tests/e2e/test_chart_gateway.py does so": (
            (
                "docs/gateway.md",
                "helm install podwire deploy/helm/podwire -n kube-system -f deploy/values/gateway.yaml "
                "--set gateway.exposure=hostPort",
            ),
        ),
        "needs Ingresses and a Gateway; tests/e2e/test_gateway.py has some": (
            ("docs/gateway.md", "podwire gateway migrate --gateway web/front > gateway.yaml"),
        ),
        "needs a BGPPeer; tests/kernel/test_balancer_routes.py has one": (
            (
                "docs/loadbalancer.md",
                "kubectl patch bgppeers.metallb.io tor -n metallb-system --type merge "
                '-p \'{"spec": {"passwordSecret": {"name": "tor"}}}\'',
            ),
        ),
        "takes a cluster of another build to this one; tests/e2e/test_upgrade_local.py does so": (
            ("docs/upgrade-proof.md", "podwire up --nodes 2 --version podwire-0.1.0-py3-none-any.whl"),
            ("docs/upgrade-proof.md", "podwire upgrade local apply"),
            ("docs/upgrade-proof.md", "podwire upgrade local apply --to WHEEL"),
            ("docs/upgrade-proof.md", "podwire upgrade local status"),
            ("docs/upgrade-proof.md", "podwire upgrade local rollback"),
            ("docs/upgrade-proof.md", "podwire upgrade report"),
            ("docs/upgrade-proof.md", "podwire upgrade report proof.json -o markdown"),
            ("docs/upgrade-proof.md", "podwire upgrade report -o svg > timeline.svg"),
            ("docs/upgrade-proof.md", "podwire upgrade report --folder FOLDER"),
        ),
        "upgrades a cluster; tests/e2e/test_upgrade_apply.py does so": (
            ("docs/upgrade-proof.md", "podwire upgrade apply --to 1.36 --proof FOLDER"),
            ("docs/upgrade-proof.md", "podwire upgrade report FOLDER/proof.json"),
        ),
        "runs until it is ended; tests/unit/flows and tests/kernel/test_flow_recording.py do so": (
            ("docs/upgrade-proof.md", "podwire flows serve"),
            (
                "docs/upgrade-proof.md",
                'podwire flows send 10.244.1.2 \'{"kind": "dns", "address": "10.96.0.10", "port": 53, "path": "dns", '
                '"name": "kubernetes.default.svc.cluster.local."}\'',
            ),
            ("docs/upgrade-proof.md", "podwire flows record"),
        ),
        "makes the image; tests/kernel/test_image.py does so": (("docs/install.md", "make image"),),
        "takes the cluster to another network; tests/e2e/test_migrate.py does so": (
            ("docs/migrate.md", "podwire migrate plan"),
            ("docs/migrate.md", "podwire migrate apply"),
            ("docs/migrate.md", "podwire migrate apply --node node-1"),
            ("docs/migrate.md", "podwire migrate status"),
            ("docs/migrate.md", "podwire migrate back"),
        ),
        "makes a local cluster of its own; tests/e2e/test_upgrade_plan.py rehearses a plan": (
            ("docs/upgrade.md", "sudo podwire upgrade rehearse --to 1.36"),
            ("docs/upgrade.md", "sudo podwire upgrade rehearse --plan plan.json --nodes 5 -o json"),
            (
                "docs/upgrade.md",
                "sudo podwire upgrade rehearse --to 1.36 --command "
                "registry.k8s.io/coredns/coredns=/usr/local/bin/coredns",
            ),
        ),
        "needs podwire's agents as pods, or changes the cluster; tests/e2e/test_upgrade_apply.py runs each": (
            ("docs/upgrade.md", "podwire upgrade node serve"),
            ("docs/upgrade.md", "podwire upgrade verify --observer 192.0.2.7:9483 --source 203.0.113.5"),
            ("docs/upgrade.md", "podwire upgrade backup --to network-2026-01-02"),
            ("docs/upgrade.md", "podwire upgrade restore --from network-2026-01-02 --dry-run"),
            ("docs/upgrade.md", "podwire upgrade restore --from network-2026-01-02"),
            ("docs/upgrade.md", "podwire upgrade apply --plan plan.json"),
            ("docs/upgrade.md", "podwire upgrade apply --to 1.36"),
            ("docs/upgrade.md", "podwire upgrade apply"),
            ("docs/upgrade.md", "podwire upgrade rollback"),
            ("docs/upgrade.md", "podwire upgrade verify"),
            ("docs/upgrade.md", "podwire upgrade verify --node node-1 --egress 192.0.2.7:443 -o json"),
        ),
        "needs a cluster with blocks of addresses; tests/e2e/test_ip_blocks.py has one": (
            ("docs/ipam.md", "podwire ipam --release 10.244.0.64/26"),
            ("docs/ipam.md", "kubectl get ippools,ipamblocks"),
        ),
        "names a Deployment of the reader's; tests/e2e/test_load_balancer.py has one": (
            ("docs/loadbalancer.md", "kubectl expose deployment web --port 80 --type LoadBalancer"),
        ),
        "builds in the checkout; tests/unit/cni/test_program_build.py does so elsewhere": (
            ("docs/development.md", "make -C src/cni"),
            ("docs/development.md", "make -C src/cni CC=aarch64-linux-gnu-gcc"),
        ),
        "takes a node out of its cluster; tests/kernel/test_uninstall.py does so": (
            ("docs/install.md", "kubectl drain node-1 node-2 --ignore-daemonsets --delete-emptydir-data"),
            ("docs/install.md", "podwire uninstall --config /etc/podwire/agent.yaml --dry-run"),
            ("docs/install.md", "podwire uninstall --config /etc/podwire/agent.yaml"),
        ),
        "needs the configuration of a real node; tests/kernel/test_preflight.py has one": (
            ("docs/install.md", "podwire preflight --config /etc/podwire/agent.yaml"),
        ),
        "needs an EgressPolicy; tests/e2e/test_egress.py reads the table": (
            ("docs/egress.md", "nft list table inet podwire-egress"),
        ),
        "needs nodes with the backend wireguard; tests/kernel/test_routing_wireguard.py has some": (
            ("docs/backends/wireguard.md", "ip route show dev podwire-wg"),
            ("docs/backends/wireguard.md", "tcpdump -ni eth0 udp port 51820"),
        ),
        "needs nodes with the backend udp; tests/kernel/test_routing_udp.py has some": (
            ("docs/backends/udp.md", "podwire exec node-1 podwire udp"),
            ("docs/backends/udp.md", "ip route show dev podwire-udp"),
            ("docs/backends/udp.md", "tcpdump -ni eth0 udp port 8285"),
        ),
        "needs a node with interfaces of a cloud; tests/kernel/test_cloudaddresses.py has some": (
            ("docs/backends/cloudroutes.md", "ip rule show"),
            ("docs/backends/cloudroutes.md", "ip route show table 2"),
        ),
        "needs netem, which many kernels lack; tests/uml/test_lab_delay.py shows a delay": (
            ("docs/lab.md", "podwire lab delay node-2 20"),
        ),
        "needs the end-to-end test binary of a Kubernetes release": (
            ("docs/conformance.md", "make conformance E2E=./e2e.test"),
            ("docs/conformance.md", "make conformance E2E=./e2e.test SIGS=apps GINKGO=./ginkgo PROCS=4"),
        ),
        "names a policy of the reader's; tests/e2e/test_admission_policies.py reads the type checking of its own": (
            ("docs/apiserver.md", "kubectl get validatingadmissionpolicy NAME -o jsonpath='{.status.typeChecking}'"),
        ),
        "installs, then runs `podwire up` with the options of the README's first command": (("README.md", "make up"),),
        _README: (
            ("docs/local-cluster.md", "podwire up --nodes 3 -f examples/shop --probe"),
            ("docs/local-cluster.md", "podwire down"),
            ("docs/getting-started.md", "make setup"),
            ("docs/getting-started.md", "podwire up --nodes 3 -f examples/shop"),
            ("docs/getting-started.md", "podwire down"),
            ("docs/backends/README.md", "podwire up --backend hostgw"),
        ),
        "tests/e2e/test_commands.py runs it with a home folder of its own": (
            ("docs/local-cluster.md", "podwire kubeconfig --merge"),
        ),
        "needs a shell that is not part of the test machines; tests/unit/cli/test_completion.py reads the script": (
            ("docs/local-cluster.md", "source <(podwire completion zsh)"),
            ("docs/local-cluster.md", "podwire completion fish | source"),
        ),
        _KERNEL: (
            ("docs/backends/cloudroutes.md", "ip rule add priority 512 to 10.0.1.8/31 lookup main"),
            ("docs/backends/cloudroutes.md", "ip rule add priority 1024 fwmark 0x80/0x80 lookup main"),
            ("docs/backends/cloudroutes.md", "ip rule add priority 1536 from 10.0.1.8/31 to 10.0.0.0/16 lookup 2"),
            ("docs/backends/cloudroutes.md", "ip route add default via 10.0.1.1 dev ens6 onlink table 2 proto 113"),
            ("docs/backends/cloudroutes.md", "ip -6 route add ::/0 via fe80:ec2::1 dev ens6 onlink table 2 proto 113"),
            (
                "docs/backends/ovs.md",
                "ip neighbour add 10.244.1.1 lladdr 02:c1:95:f8:32:c5 dev podwire-ovs nud permanent",
            ),
            (
                "docs/backends/ovs.md",
                "ip route add 10.244.1.0/24 via 10.244.1.1 dev podwire-ovs onlink src 10.244.0.1 proto 113",
            ),
            ("docs/backends/hostgw.md", "ip route add 10.244.1.0/24 via 192.0.2.12 dev eth0 proto 113"),
            ("docs/backends/bgp.md", "ip route add 10.244.1.0/24 via 192.0.2.12 dev eth0 proto 113"),
            ("docs/backends/bgp.md", "ip route add 10.244.7.0/24 via 192.0.2.1 dev eth0 proto bird metric 2113"),
            (
                "docs/backends/ipip.md",
                "ip route add 10.244.1.0/24 via 192.0.2.12 dev podwire-ipip onlink src 10.244.0.1 proto 113",
            ),
            (
                "docs/backends/ipip.md",
                "ip route add fd44:0:0:1::/64 via ::192.0.2.12 dev podwire-sit onlink src fd44::1 proto 113",
            ),
            (
                "docs/backends/geneve.md",
                "ip neighbour add 10.244.1.1 lladdr <the peer's tunnel MAC> dev podwire-geneve nud permanent",
            ),
            (
                "docs/backends/geneve.md",
                "ip route add 10.244.1.0/24 encap ip id 4096 dst 192.0.2.12 ttl 64 via 10.244.1.1 dev podwire-geneve "
                "onlink proto 113",
            ),
            ("docs/backends/vlan.md", "ip link add podwire-vlan-up link eth0 type vlan id 1000"),
            ("docs/backends/vlan.md", "ip link set podwire-vlan-up master podwire-vlan"),
            ("docs/backends/macvlan.md", "ip link add lan0 link eth0 netns <the pod's> type macvlan mode bridge"),
            ("docs/backends/macvlan.md", "ip address add 10.244.0.5/32 dev lan0"),
            ("docs/backends/macvlan.md", "ip route add 10.244.1.0/24 dev lan0 proto 112"),
            ("docs/backends/ipvlan.md", "ip link add lan0 link eth0 netns <the pod's> type ipvlan mode l2"),
            ("docs/backends/ipvlan.md", "ip address add 10.244.0.5/32 dev lan0"),
            ("docs/backends/ipvlan.md", "ip route add 10.244.1.0/24 dev lan0 proto 112"),
            ("docs/backends/ipvlan.md", "ip route add 192.0.2.12/32 dev lan0 proto 112"),
            ("docs/backends/ipvlan.md", "ip route add 10.244.2.0/24 via 192.0.2.13 dev lan0 onlink proto 112"),
            ("docs/backends/bridge.md", "ip link add podwire-br-port link eth0 type macvlan mode private"),
            ("docs/backends/bridge.md", "ip link set podwire-br-port master podwire-bridge"),
            (
                "docs/backends/bridge.md",
                "ip neighbour add 10.244.1.1 lladdr <the peer's segment MAC> dev podwire-bridge nud permanent",
            ),
            (
                "docs/backends/bridge.md",
                "ip route add 10.244.1.0/24 via 10.244.1.1 dev podwire-bridge onlink proto 113",
            ),
            (
                "docs/backends/vxlan.md",
                "ip route add 10.244.1.0/24 via 10.244.1.1 dev podwire-vxlan onlink proto 113",
            ),
            (
                "docs/backends/vxlan.md",
                "ip neighbour add 10.244.1.1 lladdr <the peer's tunnel MAC> dev podwire-vxlan nud permanent",
            ),
            ("docs/backends/udp.md", "ip route add 10.244.1.0/24 dev podwire-udp src 10.244.0.1 proto 113"),
            ("docs/backends/wireguard.md", "ip route add 10.244.1.0/24 dev podwire-wg src 10.244.0.1 proto 113"),
            ("docs/cni.md", "ip addr add 10.244.0.5/32 dev eth0"),
            ("docs/cni.md", "ip route add 10.244.0.1 dev eth0"),
            ("docs/cni.md", "ip route add default via 10.244.0.1 dev eth0"),
            ("docs/cni.md", "ip addr add 10.244.0.1/32 dev podwire-pods"),
            ("docs/cni.md", "ip route add 10.244.0.5/32 via 10.244.0.5 dev podwire-pods onlink proto 112"),
            ("docs/cni.md", "ip route add 169.254.1.1 dev eth0"),
            ("docs/cni.md", "ip route add default via 169.254.1.1 dev eth0"),
            ("docs/cni.md", "ip route add 10.244.0.5/32 dev web-55cf-0864f3 proto 112"),
        ),
        "needs a cluster with the gateway; tests/e2e/test_gateway.py has one": (
            ("docs/gateway.md", "podwire up --config cluster.yaml"),
            ("docs/gateway.md", 'kubectl create ingress web --rule="web.example/*=web:80"'),
        ),
        "takes certificates of the reader's": (
            (
                "docs/apiserver.md",
                "curl --cacert ca.crt --cert admin.crt --key admin.key https://127.0.0.1:PORT/readyz",
            ),
        ),
        _OWN_CLUSTER: (
            ("docs/conformance.md", "podwire conformance cases/*.json"),
            ("docs/conformance.md", "podwire conformance cases.json --case 'deny-*' --family 6"),
            ("docs/conformance.md", "podwire conformance cases.json -o junit > report.xml"),
            ("docs/conformance.md", "podwire conformance cases.json --config iptables.yaml"),
            ("docs/conformance.md", "podwire up --name mine --config cluster.yaml"),
            ("docs/conformance.md", "podwire conformance cases.json --name mine"),
        ),
        _IPVS: (
            ("docs/dataplanes/ipvs.md", "podwire exec node-1 ipvsadm -Ln"),
            ("docs/dataplanes/ipvs.md", "podwire exec node-1 ipvsadm -Lcn"),
            ("docs/dataplanes/ipvs.md", "podwire exec node-1 ip address show kube-ipvs0"),
            ("docs/dataplanes/ipvs.md", "podwire exec node-1 ipset list KUBE-CLUSTER-IP"),
        ),
        "names a list by the hash of an endpoint, another one on each cluster": (
            (
                "docs/dataplanes/iptables.md",
                "podwire exec node-1 cat /proc/net/xt_recent/KUBE-SEP-7WW7JE3MKVJF5U6Q",
            ),
        ),
        "dig is not among the packages that make setup installs": (
            ("docs/dns.md", "podwire exec node-1 dig @10.96.0.10 web.shop.svc.cluster.local"),
        ),
        "leaves a process behind; tests/e2e/test_streams.py forwards ports": (
            (
                "docs/dns.md",
                "kubectl -n kube-system port-forward deploy/podwire-dns 9153 & curl -s localhost:9153/metrics",
            ),
        ),
        "needs pods on bridges; tests/e2e/test_policy_on_bridges.py has them": (
            ("docs/policy-only.md", "nft list table bridge podwire-policy"),
            ("docs/policy-only.md", "nft list map ip podwire-policy bridged"),
        ),
        "runs on a node of a real cluster; tests/e2e/test_components_alone.py runs it there": (
            (
                "docs/services.md",
                "podwire agent --kube-proxy-config /var/lib/kube-proxy/config.conf --hostname-override NODE",
            ),
        ),
        "removes rules of this machine; tests/kernel/test_proxy_leftovers.py runs it in a namespace": (
            ("docs/services.md", "podwire proxy cleanup"),
        ),
    }.items()
    for page, command in commands
}


def pages() -> tuple[str, ...]:
    """The pages, relative to the root."""
    result = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return tuple(str(page.relative_to(ROOT)) for page in result)


def commands_of(page: str) -> tuple[Documented, ...]:
    """The commands in the code blocks of a page, without prompts and comments."""
    result = []
    for line in (ROOT / page).read_text().splitlines():
        text = re.sub(r"\s+#( .*)?$", "", line[4:]).removeprefix("$ ") if line.startswith("    ") else ""
        if _COMMAND.match(f"{text} "):
            result.append(Documented(page, text))
    return tuple(result)
