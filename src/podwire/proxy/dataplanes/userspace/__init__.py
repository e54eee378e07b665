"""Services by a process: a redirect rule leads to it, it chooses an endpoint and copies bytes."""
