"""Files of policy cases, pods that request addresses, and the kind ClusterNetworkPolicy."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.e2e.clusters import done, own_name, run, running
from tests.e2e.driver import Cluster, Lines, eventually, podwire

CASES = Path(__file__).parents[1] / "cases/conformance/policies.yaml"
_FIRST = 'TCP/80: {shop/web: "...", shop/db: "...", bank/teller: "..."}'
_WRONG = 'TCP/80: {shop/web: ".X.", shop/db: "...", bank/teller: "..."}'


@pytest.fixture(scope="module")
def dual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose IPv6 ranges embed the IPv4 ranges."""
    config = tmp_path_factory.mktemp("config") / "cluster.yaml"
    config.write_text('nodes: 2\npodCIDRs: [10.244.0.0/16, "fd10::af4:0/112"]\n')
    with running(own_name("conform"), "--config", str(config)) as cluster:
        yield cluster


def changed(folder: Path, *pairs: tuple[str, str]) -> str:
    """The text of the project's cases with replacements."""
    text = CASES.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new, 1)
    path = folder / "cases.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_own_cases_hold_for_ipv4_and_ipv6(tmp_path: Path, mode: str) -> None:
    config = tmp_path / "cluster.yaml"
    config.write_text(f"policy: {{mode: {mode}}}\n")
    finished = run("conformance", str(CASES), "--config", str(config), "-o", "json")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    document = json.loads(finished.stdout)
    assert [(case["case"], case["passed"]) for case in document["cases"]] == [
        ("nothing-is-denied-without-policies", True),
        ("named-ports-and-ranges", True),
        ("labels-pods-and-namespaces-change", True),
        ("cluster-policies-and-nodes", True),
    ]
    (file,) = document["files"]
    assert (file["checks"], file["failedChecks"]) == (198, 0)
    name = finished.stderr.split("'")[1]
    assert name.startswith("conformance-")
    assert not Path("/run/podwire", name).exists()


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_own_ipv6_addresses_and_ranges_of_one_family(tmp_path: Path, mode: str) -> None:
    config = tmp_path / "cluster.yaml"
    config.write_text(f"policy: {{mode: {mode}}}\n")
    finished = run("conformance", str(CASES.with_name("families.yaml")), "--config", str(config), "-o", "json")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    document = json.loads(finished.stdout)
    assert [(case["case"], case["passed"]) for case in document["cases"]] == [
        ("ranges-of-one-family", True),
        ("egress-to-ranges-of-one-family", True),
        ("a-pod-that-comes-later", True),
    ]
    (file,) = document["files"]
    assert (file["checks"], file["failedChecks"]) == (39, 0)
    assert "fd20::/112" in finished.stderr


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, 130)], ids=("SIGTERM", "Ctrl-C")
)
def test_own_cluster_is_removed_when_the_command_ends(tmp_path: Path, number: signal.Signals, status: int) -> None:
    config = tmp_path / "cluster.yaml"
    config.write_text("nodes: 9\nrouting: {backend: hostgw}\n")
    arguments = [*podwire(), "conformance", str(CASES), "--config", str(config)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        name = Lines(process).next().split("'")[1]
        try:
            assert "hostgw" in done("status", "--name", name)
        finally:
            process.send_signal(number)
        assert process.wait(20) == status
        assert process.stdout is not None
        output = process.stdout.read().decode()
        assert ("interrupted; the cluster of this run is removed" in output) == (number == signal.SIGINT), output
    assert not Path("/run/podwire", name).exists()


def test_a_wrong_expectation_is_reported_and_everything_goes_again(dual: Cluster, tmp_path: Path) -> None:
    file = changed(tmp_path, (_FIRST, _WRONG))
    finished = run("conformance", file, "--name", dual.name, "--case", "nothing-*")
    assert finished.returncode == 1, finished.stdout + finished.stderr
    for family in (4, 6):
        assert (
            f"nothing-is-denied-without-policies step 0: shop/web -> shop/db TCP/80 IPv{family}: "
            "expected blocked, observed: answered; the evaluator says allowed: the file is wrong"
        ) in finished.stdout
    assert "0 of 1 cases passed, 52 of 54 checks" in finished.stdout
    assert not {"shop", "bank"} & {item["metadata"]["name"] for item in dual.get("namespaces")["items"]}


def test_refused_case_is_reported_and_the_next_one_runs(dual: Cluster, tmp_path: Path) -> None:
    file = changed(tmp_path, ("priority: 10", "priority: 2000"), ("id: nothing-is", "id: zz-nothing-is"))
    arguments = ("--name", dual.name, "--case", "[cz]*", "--family", "6", "-o", "junit")
    finished = run("conformance", file, *arguments)
    assert finished.returncode == 1, finished.stdout + finished.stderr
    (suite,) = ElementTree.fromstring(finished.stdout)
    assert (suite.get("tests"), suite.get("errors"), suite.get("failures")) == ("2", "1", "0")
    error = suite.find("testcase[@name='cluster-policies-and-nodes']/error")
    assert error is not None
    assert "spec.priority" in str(error.get("message"))
    assert "zone" not in json.dumps(dual.get("nodes", "-l", "zone")["items"])


def test_namespaces_of_others_are_not_touched(dual: Cluster) -> None:
    dual.kubectl("create", "namespace", "bank")
    try:
        finished = run("conformance", str(CASES), "--name", dual.name)
        assert finished.returncode == 2
        assert finished.stderr.strip() == (
            "podwire: --name: namespace bank exists already, and a case creates a namespace of that name"
        )
    finally:
        dual.kubectl("delete", "namespace", "bank")


def test_a_cluster_without_fitting_ranges_is_checked_in_ipv4(cluster: Cluster) -> None:
    arguments = ("conformance", str(CASES), "--name", cluster.name, "--case", "nothing-*")
    refused = run(*arguments)
    assert refused.returncode == 2
    assert "Use --family 4" in refused.stderr
    assert "1 of 1 cases passed, 27 of 27 checks" in done(*arguments, "--family", "4")


@pytest.mark.parametrize(
    ("old", "new", "output"),
    [
        ("format: netpol", "format: other", "{}: format: expected netpol-cases/1 or cnp-cases/1"),
        (_FIRST, _FIRST.replace('"..."', '".."', 1), "{}: case nothing-is-denied-without-policies: steps[0].expected."),
        ("op: update_policy", "op: alter_policy", "{}: case named-ports-and-ranges: steps[1].actions[0].op: expected "),
        ("initial:", "initial: [", "{}:5: not YAML: "),
    ],
    ids=["format", "row", "op", "yaml"],
)
def test_a_malformed_file_is_refused_before_anything_runs(tmp_path: Path, old: str, new: str, output: str) -> None:
    file = changed(tmp_path, (old, new))
    finished = run("conformance", file)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr.startswith(f"podwire: {output.format(file)}"), finished.stderr
    assert finished.stderr.count("\n") == 1


def test_missing_case_files_and_cases_are_errors(tmp_path: Path) -> None:
    missing = run("conformance", str(tmp_path / "none.json"))
    assert (missing.returncode, "cannot be read: No such file" in missing.stderr) == (2, True)
    nobody = run("conformance", str(CASES), "--case", "nobody")
    assert (nobody.returncode, nobody.stderr) == (2, "podwire: --case: no case is named 'nobody'\n")


def test_a_running_cluster_has_its_own_configuration(dual: Cluster, tmp_path: Path) -> None:
    refused = run("conformance", str(CASES), "--name", dual.name, "--config", str(tmp_path / "any.yaml"))
    assert refused.returncode == 2
    assert refused.stderr.startswith("podwire: --config: cluster ")


_POD = """
apiVersion: v1
kind: Pod
metadata: {name: %s, annotations: {podwire.io/addresses: "%s"}}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: busybox, command: [sleep, infinity]}]
"""


def test_pod_gets_requested_addresses_or_an_event(dual: Cluster) -> None:
    ranges = {node["metadata"]["name"]: node["spec"]["podCIDRs"] for node in dual.get("nodes")["items"]}
    four, six = (text.partition("/")[0] for text in ranges["node-2"])
    pinned = (four[:-1] + "77", f"{six[: six.rindex(':')]}:{int(six.rpartition(':')[2] or '0', 16) + 0x4D:x}")
    dual.apply(_POD % ("pinned", ",".join(pinned), "node-2"))
    dual.apply(_POD % ("half", four[:-1] + "78", "node-2"))
    try:
        dual.ready("pinned", "half")
        assert {ip["ip"] for ip in dual.get("pod", "pinned")["status"]["podIPs"]} == set(pinned)
        assert dual.get("pod", "half")["status"]["podIP"] == four[:-1] + "78"
        assert len(dual.get("pod", "half")["status"]["podIPs"]) == 2
        for name, node, problem in (
            ("taken", "node-2", f"{pinned[0]} is in use"),
            ("elsewhere", "node-1", f"{pinned[0]} is not in a pod CIDR of this node"),
        ):
            dual.apply(_POD % (name, pinned[0], node))
            eventually(lambda name=name, problem=problem: problem in _events(dual, name))
        dual.apply(_POD % ("nonsense", "10.244", "node-2"))
        eventually(lambda: "'10.244' is not an address" in _events(dual, "nonsense"))
    finally:
        dual.kubectl("delete", "pods", "--all", "--now")


def _events(cluster: Cluster, pod: str) -> str:
    result = cluster.get("events", "--field-selector", f"involvedObject.name={pod}")["items"]
    return "\n".join(item["message"] for item in result)


_CLUSTER_POLICY = """
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: deny}
spec:
  tier: %s
  priority: %s
  subject: {namespaces: {}}
  egress: [{action: %s, to: [%s]}]
"""


def test_api_serves_cluster_policies_and_refuses_wrong_ones(dual: Cluster) -> None:
    dual.apply(_CLUSTER_POLICY % ("Admin", 7, "Deny", "{networks: [203.0.113.0/24]}"))
    try:
        head, row = dual.kubectl("get", "cnp").splitlines()
        assert (head.split(), row.split()[:3]) == (["NAME", "TIER", "PRIORITY", "AGE"], ["deny", "Admin", "7"])
        assert "Exactly one field." in dual.kubectl("explain", "cnp.spec.egress.to")
    finally:
        dual.kubectl("delete", "cnp", "deny")
    wrong = _CLUSTER_POLICY % ("Top", 1001, "Drop", '{networks: ["10.0"]}, {}, {namespaces: {}, nodes: {}}')
    output = dual.refused("apply", "-f", "-", stdin=wrong)
    ports = "{}}], protocols: [{tcp: {destinationPort: {range: {start: 90, end: 80}}}}"
    output += dual.refused("apply", "-f", "-", stdin=_CLUSTER_POLICY % ("Admin", 7, "Deny", "{namespaces: " + ports))
    assert "Start port must be less than End port" in output
    for field in (
        "spec.tier",
        "spec.priority",
        "spec.egress[0].action",
        *(f"spec.egress[0].to[{n}]" for n in range(3)),
    ):
        assert field in output
