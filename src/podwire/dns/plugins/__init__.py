"""The plugins of a Corefile that answer requests or change them, one module each."""
