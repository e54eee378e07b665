"""Pod routing by the network of a cloud."""
