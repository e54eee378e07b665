"""The rules that kube-proxy 1.36 writes for one Service with two endpoints, by its modes iptables and nftables.

The Service has the address 10.96.0.10 and port 80, node port 30080; the endpoints listen on 8080. The node is
10.89.0.11.
"""

IPTABLES = """
*nat
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-SVC-CDGGSHYLG3RE2FKL - [0:0]
:KUBE-EXT-CDGGSHYLG3RE2FKL - [0:0]
:KUBE-SEP-7WW7JE3MKVJF5U6Q - [0:0]
:KUBE-SEP-R377EZRFZZ6RNEZZ - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-CDGGSHYLG3RE2FKL
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-NODEPORTS -p tcp -m tcp --dport 30080 -j KUBE-EXT-CDGGSHYLG3RE2FKL
-A KUBE-EXT-CDGGSHYLG3RE2FKL -j KUBE-MARK-MASQ
-A KUBE-EXT-CDGGSHYLG3RE2FKL -j KUBE-SVC-CDGGSHYLG3RE2FKL
-A KUBE-SVC-CDGGSHYLG3RE2FKL ! -s 10.244.0.0/16 -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SVC-CDGGSHYLG3RE2FKL -m statistic --mode random --probability 0.5 -j KUBE-SEP-7WW7JE3MKVJF5U6Q
-A KUBE-SVC-CDGGSHYLG3RE2FKL -j KUBE-SEP-R377EZRFZZ6RNEZZ
-A KUBE-SEP-7WW7JE3MKVJF5U6Q -s 10.244.1.2/32 -j KUBE-MARK-MASQ
-A KUBE-SEP-7WW7JE3MKVJF5U6Q -p tcp -m tcp -j DNAT --to-destination 10.244.1.2:8080
-A KUBE-SEP-R377EZRFZZ6RNEZZ -s 10.244.1.3/32 -j KUBE-MARK-MASQ
-A KUBE-SEP-R377EZRFZZ6RNEZZ -p tcp -m tcp -j DNAT --to-destination 10.244.1.3:8080
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
COMMIT
*filter
:KUBE-FORWARD - [0:0]
:KUBE-SERVICES - [0:0]
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
"""
NFTABLES = """
table ip kube-proxy {
 set cluster-ips {
  type ipv4_addr
  elements = { 10.96.0.10 }
 }
 set nodeport-ips {
  type ipv4_addr
  elements = { 10.89.0.11 }
 }
 set hairpin-connections {
  type ipv4_addr . ipv4_addr . inet_proto . inet_service
  elements = { 10.244.1.2 . 10.244.1.2 . tcp . 8080, 10.244.1.3 . 10.244.1.3 . tcp . 8080 }
 }
 map service-ips {
  type ipv4_addr . inet_proto . inet_service : verdict
  elements = { 10.96.0.10 . tcp . 80 : goto service-web }
 }
 map service-nodeports {
  type inet_proto . inet_service : verdict
  elements = { tcp . 30080 : goto external-web }
 }
 chain nat-prerouting {
  type nat hook prerouting priority -100
  jump services
 }
 chain nat-output {
  type nat hook output priority -100
  jump services
 }
 chain nat-postrouting {
  type nat hook postrouting priority 100
  jump masquerading
 }
 chain filter-forward {
  type filter hook forward priority 0
  ct state new jump cluster-ips-check
 }
 chain filter-output {
  type filter hook output priority 0
  ct state new jump cluster-ips-check
 }
 chain services {
  ip daddr @cluster-ips ip saddr != 10.244.0.0/16 meta mark set meta mark or 0x4000
  ip daddr . meta l4proto . th dport vmap @service-ips
  ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
 }
 chain external-web {
  meta mark set meta mark or 0x4000
  goto service-web
 }
 chain service-web {
  meta l4proto tcp dnat ip to numgen random mod 2 map { 0 : 10.244.1.2 . 8080, 1 : 10.244.1.3 . 8080 }
 }
 chain masquerading {
  meta mark & 0x4000 != 0 meta mark set meta mark xor 0x4000 masquerade fully-random
  ct status dnat ip saddr . ip daddr . meta l4proto . th dport @hairpin-connections masquerade fully-random
 }
 chain cluster-ips-check {
  ip daddr @cluster-ips reject
  ip daddr 10.96.0.0/16 drop
 }
}
"""
