"""The resolvers of glibc and of musl in pods: addresses, search path, reverse names, and names that do not exist.

A small program is compiled with each C library and copied into a pod; it asks as programs of that library do: glibc
sends A and AAAA on one socket, musl asks all servers at once and takes no missing record for a missing name.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.e2e.driver import Cluster, shell_pod

PROGRAM = r"""
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* Prints the addresses of each name, or the error; an address is turned into its name. */
int main(int count, char **names) {
    for (int i = 1; i < count; i++) {
        struct sockaddr_in address = {.sin_family = AF_INET};
        char text[256];
        if (inet_pton(AF_INET, names[i], &address.sin_addr) == 1) {
            int status = getnameinfo((void *)&address, sizeof address, text, sizeof text, 0, 0, NI_NAMEREQD);
            printf("%s %s\n", names[i], status ? "none" : text);
            continue;
        }
        struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = 0;
        int status = getaddrinfo(names[i], 0, &hints, &list);
        printf("%s", names[i]);
        if (status) printf(" none");
        for (struct addrinfo *item = list; item; item = item->ai_next) {
            void *from = item->ai_family == AF_INET ? (void *)&((struct sockaddr_in *)item->ai_addr)->sin_addr
                                                    : (void *)&((struct sockaddr_in6 *)item->ai_addr)->sin6_addr;
            printf(" %s", inet_ntop(item->ai_family, from, text, sizeof text));
        }
        printf("\n");
    }
    return 0;
}
"""

SERVICES = """
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: many}
spec: {clusterIP: None, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: many-1, labels: {kubernetes.io/service-name: many}}
addressType: IPv4
ports: [{port: 80}]
endpoints:
"""
_MANY = 90
"""Addresses that exceed 512 bytes: glibc asks again over TCP, musl before 1.2.4 takes those that came, at most 48."""

_IN_512_BYTES = 20
COMPILERS = {"glibc": ("gcc",), "musl": ("musl-gcc", "-static")}


@pytest.mark.parametrize("library", COMPILERS)
def test_names_resolve_with_the_c_library(library: str, cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    compiler, *options = COMPILERS[library]
    assert shutil.which(compiler) is not None, f"no {compiler}: run make setup"
    (tmp_path / "ask.c").write_text(PROGRAM)
    subprocess.run([compiler, *options, "-o", str(tmp_path / "ask"), str(tmp_path / "ask.c")], check=True)
    endpoints = "".join(f"- addresses: [192.0.2.{i + 1}]\n" for i in range(_MANY))
    cluster.apply(f"{SERVICES}{endpoints}---{shell_pod('client', 'sleep 600')}", "-n", namespace)
    cluster.ready("client", namespace=namespace)
    cluster.kubectl("cp", str(tmp_path / "ask"), f"{namespace}/client:/tmp/ask")
    address = str(cluster.get("service", "web", "-n", namespace)["spec"]["clusterIP"])
    whole = f"web.{namespace}.svc.cluster.local"
    names = ("web", f"web.{namespace}", f"{whole}.", "gone", f"gone.{whole}", address, "many")
    output = cluster.kubectl("exec", "client", "-n", namespace, "--", "/tmp/ask", *names)

    answers = {line.split()[0]: line.split()[1:] for line in output.splitlines()}
    assert [answers[name] for name in names[:3]] == [[address]] * 3
    assert answers["gone"] == answers[f"gone.{whole}"] == ["none"]
    assert answers[address] == [whole]
    assert set(answers["many"]) <= {f"192.0.2.{i + 1}" for i in range(_MANY)}
    assert len(set(answers["many"])) == _MANY if library == "glibc" else len(answers["many"]) >= _IN_512_BYTES
