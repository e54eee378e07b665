"""One HTTP server and client for all parts: API server, health, metrics, kubelet, pages, upgrades."""
