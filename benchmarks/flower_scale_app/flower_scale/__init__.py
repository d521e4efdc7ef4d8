"""FedForget in Flower beside Flower's bare exchange, for many clients."""
