"""Why policies let a connection through or drop it: ``explain.said(world, connection)``, or ``explain.line`` as text."""
