"""The kubelet's log files by HTTP: files, pages of folders, and what is not there."""

from pathlib import Path

import pytest

from podwire.embedded.kubelet.nodelogs import answer_logs
from podwire.http.message import Request

POD = "pods/default_web_1234/main"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    result = {f"{POD}/0.log": tmp_path / "a", f"{POD}/1.log": tmp_path / "b", "kubelet.log": tmp_path / "c"}
    for name, path in result.items():
        path.write_text(f"text of {name}\n")
    return {**result, "pods/default_gone_5678/main/0.log": tmp_path / "none"}


def _get(path: str, files: dict[str, Path]) -> tuple[int, str, tuple[tuple[str, str], ...]]:
    request = Request("GET", path, {}, b"")
    answer = answer_logs(request, request.segments()[1:], files)
    return answer.status, answer.body.decode(), answer.headers


def test_files_are_answered_whole(files: dict[str, Path]) -> None:
    assert _get("/logs/kubelet.log", files)[:2] == (200, "text of kubelet.log\n")
    assert _get(f"/logs/{POD}/1.log", files)[:2] == (200, f"text of {POD}/1.log\n")


@pytest.mark.parametrize(
    ("path", "links"),
    [
        ("/logs/", ["kubelet.log", "pods/"]),
        ("/logs/pods/", ["default_gone_5678/", "default_web_1234/"]),
        (f"/logs/{POD}/", ["0.log", "1.log"]),
    ],
)
def test_folders_are_pages_of_links(files: dict[str, Path], path: str, links: list[str]) -> None:
    status, page, _ = _get(path, files)
    assert status == 200
    assert [line for line in page.splitlines() if line.startswith("<a")] == [
        f'<a href="{link}">{link}</a>' for link in links
    ]


@pytest.mark.parametrize(("path", "location"), [("/logs", "logs/"), ("/logs/pods", "pods/"), (f"/logs/{POD}", "main/")])
def test_a_folder_without_a_slash_is_redirected(files: dict[str, Path], path: str, location: str) -> None:
    assert _get(path, files) == (301, "", (("Location", location),))


@pytest.mark.parametrize(
    "path", ["/logs/none", "/logs/pods/none/", "/logs/../../etc/passwd", "/logs/pods/default_gone_5678/main/0.log"]
)
def test_what_is_not_there_is_not_found(files: dict[str, Path], path: str) -> None:
    assert _get(path, files)[0] == 404
