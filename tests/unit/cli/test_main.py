"""How a command ends whose output nobody reads any more."""

import os
import subprocess
import sys
from pathlib import Path


def ended(*arguments: str, cwd: Path) -> tuple[int, str]:
    """Exit status and errors of a command whose output nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = subprocess.run(
            [sys.executable, "-m", "podwire.cli.main", *arguments],
            stdout=writer,
            stderr=subprocess.PIPE,
            cwd=cwd,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)
    return result.returncode, result.stderr


def test_closed_output_pipe_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "deny.yaml").write_text(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n"
        "metadata: {name: deny, namespace: shop}\nspec: {podSelector: {}}\n"
    )
    assert ended("policy", "check", "-f", ".", cwd=tmp_path) == (0, "")


def test_missing_file_is_an_error_despite_a_closed_pipe(tmp_path: Path) -> None:
    status, errors = ended("policy", "check", "-f", "nowhere", cwd=tmp_path)
    assert status == 2 and "nowhere" in errors


def test_all_that_is_wrong_is_a_line_each(tmp_path: Path) -> None:
    (tmp_path / "deny.yaml").write_text(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n"
        "metadata: {name: deny, namespace: shop}\nspec: {podSelectr: {}, ingres: []}\n"
    )
    status, errors = ended("policy", "check", "-f", "deny.yaml", cwd=tmp_path)
    fields = [line.split(": ")[:3] for line in errors.splitlines()]
    assert (status, fields) == (2, [["podwire", "deny.yaml:4", f"spec.{name}"] for name in ("podSelectr", "ingres")])
