"""The only package that touches the kernel: read() and apply() of state values."""
