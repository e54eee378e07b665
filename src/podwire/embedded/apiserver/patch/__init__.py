"""The four ways to change an object by a patch, and the ownership of fields; all pure."""
