"""Why a connection to a Service ends where it does: what Kubernetes says of it, and what the rules do."""
