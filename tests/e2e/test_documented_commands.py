"""Each command in the code blocks of the documentation runs as it stands, on a cluster with the example application.

Words in capital letters and addresses of the reader's are replaced; programs that look at a kernel run on a node.
"""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.documented import NOT_RUN, ROOT, Documented, commands_of, pages
from tests.e2e import warm_commands
from tests.e2e.clusters import done, own_name, run, running, server, topology
from tests.e2e.driver import Cluster, eventually, podwire

NAME = own_name("docs")
PAGES = sorted(
    (page for page in pages() if page != "README.md" and set(commands_of(page)) - NOT_RUN.keys()),
    key=lambda page: (page == "docs/lab.md", page),
)
"""The page of ``podwire lab`` is the last one: nodes and pods follow its changes of MTUs while it ends."""
REPLACED = {"NODE": "node-1", "NAME": "web", "http://10.89.0.11:30080/": "http://$(address node-1):30080/"}
ENDLESS = ("tcpdump ", "nft monitor", "--follow")
MAY_FAIL = ("policy check", "policy diff", "auth can-i", "--as ", "| grep web")
"""Commands whose exit status is 1 where they find something, where the answer is no, or where nothing is found."""
MODES = {"docs/dataplanes/iptables.md": "iptables", "docs/dataplanes/userspace.md": "userspace"}
POLICY_MODE = re.compile(r'"policy\.mode": "(\w+)"')
"""A change of the data plane of policies; the next command may look at its rules, so the test waits for all nodes."""
WITHOUT_NAME = "list|version|completion|conformance|upgrade"
ON_NODE = "ip nft tcpdump iptables-save conntrack"
EXTRA = f"""{server("web")}{server("client")}{server("db")}
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec: {{selector: {{app: web}}, ports: [{{port: 80}}]}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: db}}
spec: {{podSelector: {{matchLabels: {{app: db}}}}, ingress: [{{from: [{{podSelector: {{}}}}]}}]}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: db, namespace: shop}}
spec: {{podSelector: {{matchLabels: {{app: catalog}}}}, ingress: [{{from: [{{podSelector: {{}}}}]}}]}}
"""
PRELUDE = f"""set -euo pipefail
podwire() {{
    local verb=$1 name="--name {NAME}"; shift
    case $verb in
        {WITHOUT_NAME}) name= ;;
        lab) verb="lab $1"; shift ;;
        policy) case "${{1:-}}" in log|counters|check|diff) verb="policy $1"; shift ;; esac
                case " $* " in *" -f "*|*"main/k8s"*) name= ;; esac ;;
        why) case " $* " in *" -f "*) name= ;; esac ;;
    esac
    $PODWIRE $verb $name "$@"
}}
for program in {ON_NODE}; do eval "$program() {{ nsenter --net=\\$NODE_NETNS $program \\"\\$@\\"; }}"; done
address() {{ kubectl get node "$1" -o jsonpath='{{.status.addresses[0].address}}'; }}
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Path]]:
    """A cluster of two nodes with the example, and a folder with the files that the pages name."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "examples").symlink_to(ROOT / "examples")
    guarded = ROOT / "examples/guarded/k8s"
    for name in ("manifests", "k8s", "main/k8s", "branch/k8s", "overlays/prod", "charts/shop/templates"):
        shutil.copytree(guarded, folder / name)
    (folder / "branch/k8s/policies.yaml").write_text("")
    (folder / "overlays/prod/kustomization.yaml").write_text("resources: [policies.yaml, shop.yaml]\n")
    (folder / "charts/shop/Chart.yaml").write_text("apiVersion: v2\nname: shop\nversion: 0.1.0\n")
    with running(NAME, "--nodes", "2", "-f", str(ROOT / "examples/shop"), stdin=EXTRA) as cluster:
        yield cluster, folder


def use_mode(cluster: Cluster, mode: str) -> None:
    patch = f'{{"data": {{"proxy.mode": "{mode}"}}}}'
    cluster.kubectl("patch", "configmap", "podwire-config", "-n", "kube-system", "--type=merge", "-p", patch)
    announced = "jsonpath={.items[*].metadata.annotations.podwire\\.io/proxy}"
    eventually(lambda: set(cluster.kubectl("get", "nodes", "-o", announced).split()) == {mode})


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_run(shop: tuple[Cluster, Path], page: str) -> None:
    cluster, folder = shop
    if mode := MODES.get(page):
        use_mode(cluster, mode)
    if page == "docs/policy-status.md":  # counters begin again where an earlier page changes the data plane
        done("probe", "--name", NAME, "--from", "shop/app=web", "--to", "shop/app=catalog")
    try:
        failed = [
            output for item in commands_of(page) if item not in NOT_RUN and (output := problem(item, cluster, folder))
        ]
    finally:
        if mode:
            use_mode(cluster, "nftables")
    assert not failed, "\n".join(failed)


def problem(documented: Documented, cluster: Cluster, folder: Path) -> str:
    """What went wrong with a command; empty when it ran."""
    text = documented.command
    for word, value in REPLACED.items():
        text = " ".join(value if part == word else part for part in text.split(" "))
    endless = any(word in text for word in ENDLESS)
    program = podwire() if endless else [*warm_commands.client(), *podwire()]
    environment = cluster.environment(NODE_NETNS=str(topology(cluster).netns("node-1")), PODWIRE=" ".join(program))
    process = subprocess.Popen(
        ["bash", "-c", PRELUDE + text], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        cwd=folder, env=environment, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=2 if endless else 90)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT if endless else signal.SIGTERM)
        output, _ = process.communicate(timeout=30)
        return (
            ""
            if endless and b"Traceback" not in output
            else f"{documented.command}: did not end\n{output.decode()[-1500:]}"
        )
    if mode := POLICY_MODE.search(text):
        announced = "jsonpath={.items[*].metadata.annotations.podwire\\.io/policy}"
        eventually(lambda: set(cluster.kubectl("get", "nodes", "-o", announced).split()) == {mode[1]})
    allowed = (0, 1) if any(word in text for word in MAY_FAIL) else (0,)
    if process.returncode in allowed and b"Traceback" not in output and not endless:
        return ""
    return f"{documented.command}: exit {process.returncode}\n{output.decode(errors='replace')[-1500:]}"


def test_status_is_well_after_all_commands(shop: tuple[Cluster, Path]) -> None:
    eventually(lambda: run("status", "--name", NAME).returncode == 0)
