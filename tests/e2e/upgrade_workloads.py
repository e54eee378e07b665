"""Workloads of others that the tests of upgrades change: CoreDNS as kubeadm installs it, kube-proxy, and a Service."""

import json

PROXY, DNS = "registry.k8s.io/kube-proxy", "registry.k8s.io/coredns/coredns"
DNS_ADDRESS = "10.96.0.10"
COREFILE = """.:53 {
    errors
    health {
        lameduck 5s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
        ttl %d
    }
    loadbalance
    reload
}
"""
OLD_TEXT, NEW_TEXT = COREFILE % 5, COREFILE % 7
WORKLOADS = f"""
apiVersion: v1
kind: ServiceAccount
metadata: {{name: coredns, namespace: kube-system}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: system:coredns}}
rules:
  - {{apiGroups: [""], resources: [services, namespaces, pods], verbs: [list, watch]}}
  - {{apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}}
  - {{apiGroups: [""], resources: [events], verbs: [create, patch]}}
  - {{apiGroups: [multicluster.x-k8s.io], resources: [serviceimports], verbs: [list, watch]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: system:coredns}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:coredns}}
subjects: [{{kind: ServiceAccount, name: coredns, namespace: kube-system}}]
---
apiVersion: v1
kind: Service
metadata: {{name: kube-dns, namespace: kube-system, labels: {{k8s-app: kube-dns}}}}
spec:
  clusterIP: {DNS_ADDRESS}
  selector: {{k8s-app: kube-dns}}
  ports: [{{name: dns, port: 53, protocol: UDP}}, {{name: dns-tcp, port: 53, protocol: TCP}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: coredns, namespace: kube-system}}
data: {{Corefile: {json.dumps(OLD_TEXT)}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: coredns, namespace: kube-system, labels: {{k8s-app: kube-dns}}}}
spec:
  replicas: 2
  strategy: {{type: RollingUpdate, rollingUpdate: {{maxUnavailable: 1}}}}
  selector: {{matchLabels: {{k8s-app: kube-dns}}}}
  template:
    metadata: {{labels: {{k8s-app: kube-dns}}}}
    spec:
      serviceAccountName: coredns
      dnsPolicy: Default
      tolerations: [{{key: CriticalAddonsOnly, operator: Exists}}]
      containers:
        - name: coredns
          image: {DNS}:v1.12.0
          args: [dns, --corefile, /etc/coredns/Corefile]
          resources: {{limits: {{memory: 300Mi}}, requests: {{cpu: 10m, memory: 70Mi}}}}
          ports: [{{containerPort: 53, protocol: UDP, name: dns}}, {{containerPort: 53, protocol: TCP, name: dns-tcp}}]
          readinessProbe: {{httpGet: {{path: /ready, port: 8181}}, periodSeconds: 1, failureThreshold: 30}}
          volumeMounts: [{{name: config-volume, mountPath: /etc/coredns, readOnly: true}}]
      volumes:
        - name: config-volume
          configMap: {{name: coredns, items: [{{key: Corefile, path: Corefile}}]}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {{name: kube-proxy, namespace: kube-system}}
spec:
  selector: {{matchLabels: {{k8s-app: kube-proxy}}}}
  template:
    metadata: {{labels: {{k8s-app: kube-proxy}}}}
    spec:
      hostNetwork: true
      terminationGracePeriodSeconds: 1
      containers:
        - name: kube-proxy
          image: {PROXY}:v1.35.0
          ports: [{{containerPort: 10299}}]
          readinessProbe: {{httpGet: {{path: /healthz, port: 10299}}, periodSeconds: 1}}
"""
TWO = """
---
apiVersion: v1
kind: Service
metadata: {name: two}
spec: {selector: {app: two}, ports: [{port: 80}]}
"""
