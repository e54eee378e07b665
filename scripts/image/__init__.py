"""What ``scripts/make_image.py`` assembles an OCI image from: Debian's packages, wheels, layers."""
