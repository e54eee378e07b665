"""What the API refuses, with the messages of Kubernetes; all pure."""
