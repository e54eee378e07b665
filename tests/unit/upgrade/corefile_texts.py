"""Corefiles as clusters have them: kubeadm's of several releases, k3s', and changed ones."""

KUBEADM_1_12 = """.:53 {
    errors
    health
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
        upstream
        fallthrough in-addr.arpa ip6.arpa
    }
    prometheus :9153
    proxy . /etc/resolv.conf
    cache 30
    reload
}
"""

KUBEADM_1_35 = """.:53 {
    errors
    health {
       lameduck 5s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
       ttl 30
    }
    prometheus :9153
    forward . /etc/resolv.conf {
       max_concurrent 1000
    }
    cache 30 {
       disable success cluster.local
       disable denial cluster.local
    }
    loop
    reload
    loadbalance
}
"""

K3S = """.:53 {
    errors
    health
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
      pods insecure
      fallthrough in-addr.arpa ip6.arpa
    }
    hosts /etc/coredns/NodeHosts {
      ttl 60
      reload 15s
      fallthrough
    }
    prometheus :9153
    cache 30
    loop
    reload
    loadbalance
    import /etc/coredns/custom/*.override
    forward . /etc/resolv.conf
}
import /etc/coredns/custom/*.server
"""

CHANGED = """# DNS of the cluster, owner: platform team
(logging) {
    errors   # to standard output
    log . {
        class denial error
    }
}

.:53 {
    import logging
    health { # 8080
       lameduck 5s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
       endpoint https://192.0.2.1:6443 https://192.0.2.2:6443
       pods verified
       ttl 30
    }
    mycorp internal {
       table {$TABLE}
    }
    template ANY ANY "old domain.example" {
       rcode NXDOMAIN
    }
    rewrite name suffix .old.example. .svc.cluster.local. answer auto
    forward . tls://192.0.2.53 {
       tls_servername dns.example
       max_concurrent 1000
    }
    cache 30
    loop
    reload
}

corp.example:53 {
    grpc . 192.0.2.54:443
    cache 30
}
"""
"""Comments, a snippet, a plugin of a custom build, quotes, a variable, a stub domain by grpc."""
