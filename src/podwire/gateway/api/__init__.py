"""Gateway API as the route model: which routes attach to which listeners, what they become, and their status."""
