"""On which nodes policies are in force, what they dropped, and how that is reported."""
