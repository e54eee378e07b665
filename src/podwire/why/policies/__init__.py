"""Why policies let a connection through or drop it: ``explain.said(world, connection)``; ``explain.line``: as text."""
