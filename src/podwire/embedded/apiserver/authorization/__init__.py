"""Who may do what: RBAC, node authorization, escalation checks, impersonation and reviews, as Kubernetes has them."""
