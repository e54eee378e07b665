"""Certificate requests through kubectl: approved ones lead to a certificate that the API accepts."""

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.driver import Cluster, eventually

SIGNER = "kubernetes.io/kube-apiserver-client"


def ask(cluster: Cluster, folder: Path, name: str, subject: str, **spec: Any) -> str:
    """Makes a key and a request with openssl; what kubectl answers."""
    key, request = folder / f"{name}.key", folder / f"{name}.csr"
    new = ["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    subprocess.run([*new, "-keyout", str(key), "-out", str(request), "-subj", subject], check=True, capture_output=True)
    text = base64.b64encode(request.read_bytes()).decode()
    body = {
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
        "spec": {"request": text, "signerName": SIGNER, "usages": ["client auth"], **spec},
    }  # fmt: skip
    path = folder / f"{name}.json"
    path.write_text(json.dumps(body))
    done = cluster.run(["kubectl", "create", "-f", str(path)])
    return done.stdout + done.stderr


def status(cluster: Cluster, name: str) -> dict[str, Any]:
    shown: dict[str, Any] = cluster.get("csr", name).get("status") or {}
    return shown


def test_approved_request_leads_to_a_certificate_that_the_api_accepts(cluster: Cluster, tmp_path: Path) -> None:
    name = f"anna-{os.getpid()}"
    ask(cluster, tmp_path, name, "/CN=anna/O=team", expirationSeconds=3600)
    assert cluster.get("csr", name)["spec"]["username"] == "kubernetes-admin"
    cluster.kubectl("certificate", "approve", name)
    created = eventually(lambda: status(cluster, name).get("certificate"))
    (tmp_path / "crt").write_bytes(base64.b64decode(created))
    own = tmp_path / "config"
    shutil.copy(cluster.kubeconfig, own)
    files = (f"--client-certificate={tmp_path / 'crt'}", f"--client-key={tmp_path / name}.key")
    cluster.kubectl("config", "set-credentials", "anna", *files, f"--kubeconfig={own}")
    owner = cluster.kubectl("auth", "whoami", "-o", "json", "--user=anna", f"--kubeconfig={own}")
    user = json.loads(owner)["status"]["userInfo"]
    assert (user["username"], "team" in user["groups"]) == ("anna", True)
    cluster.kubectl("delete", "csr", name)


@pytest.mark.parametrize(
    ("subject", "spec", "answer"),
    [
        ("/CN=anna/O=system:masters", {}, "with system:masters group is not allowed"),
        ("/CN=anna", {"usages": ["flying"]}, "spec.usages[0]: Unsupported value"),
        ("/CN=anna", {"signerName": "somebody"}, "must be a fully qualified domain"),
        ("/CN=anna", {"request": "bm8="}, "PEM block type must be CERTIFICATE REQUEST"),
        ("/CN=anna", {"expirationSeconds": 5}, "may not specify a duration less than 600 seconds"),
    ],
)
def test_wrong_requests_are_refused(
    cluster: Cluster, tmp_path: Path, subject: str, spec: dict[str, Any], answer: str
) -> None:
    assert answer in ask(cluster, tmp_path, f"wrong-{os.getpid()}", subject, **spec)


def test_denied_and_unfitting_requests_get_no_certificate(cluster: Cluster, tmp_path: Path) -> None:
    denied, unfit = f"denied-{os.getpid()}", f"unfit-{os.getpid()}"
    ask(cluster, tmp_path, denied, "/CN=anna")
    cluster.kubectl("certificate", "deny", denied)
    ask(cluster, tmp_path, unfit, "/CN=anna", usages=["server auth"])
    cluster.kubectl("certificate", "approve", unfit)
    conditions = eventually(lambda: [c for c in status(cluster, unfit).get("conditions", ()) if c["type"] == "Failed"])
    assert conditions[0]["reason"] == "SignerValidationFailure"
    assert "certificate" not in status(cluster, denied)
    assert "certificate" not in status(cluster, unfit)
    cluster.kubectl("delete", "csr", denied, unfit)
