"""Wrong input of ``podwire upgrade plan`` and ``preflight``: exit status 2, one line, no traceback, no request."""

import subprocess
import sys
from pathlib import Path

import pytest


def podwire(*words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "podwire.cli.main", "upgrade", *words], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


WRONG = {
    "target": (
        ("plan", "--to", "latest"),
        "--to: expected a version of Kubernetes such as 1.36 or 1.36.1, got 'latest'",
    ),
    "image": (
        ("plan", "--to", "1.36", "--image", "flannel"),
        "--image: expected COMPONENT=IMAGE with a component such as",
    ),
    "component": (("preflight", "--to", "1.36", "--image", "etcd=a:1"), "--image: expected COMPONENT=IMAGE"),
    "reference": (("plan", "--to", "1.36", "--image", "coredns=A b"), "--image: coredns: expected an image such as"),
    "mirror": (("plan", "--to", "1.36", "--mirror", "registry.k8s.io"), "--mirror: expected a prefix and its mirror"),
    "size": (
        ("plan", "--to", "1.36", "--max-unavailable", "0"),
        "--max-unavailable: expected a number of nodes such as 3",
    ),
    "digests": (("plan", "--to", "1.36", "--digests", "/nowhere"), "/nowhere: cannot be read"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_option_is_refused_before_any_request(case: str) -> None:
    words, message = WRONG[case]
    status, errors = podwire(*words)
    assert (status, errors.startswith(f"podwire: {message}")) == (2, True), errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a", "expected a mapping of images to digests"),
        ("a: [", "is not YAML"),
        ("registry.k8s.io/kube-proxy:v1: sha256:12", "registry.k8s.io/kube-proxy:v1: expected a digest such as"),
    ],
)
def test_wrong_file_of_digests_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "digests.yaml"
    file.write_text(text)
    status, errors = podwire("plan", "--to", "1.36", "--digests", str(file))
    assert (status, message in errors, "Traceback" in errors) == (2, True, False), errors


def test_target_is_required() -> None:
    status, errors = podwire("plan")
    assert status == 2 and "Missing option '--to'" in errors
