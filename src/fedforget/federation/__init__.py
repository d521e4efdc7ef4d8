"""Ways to reach the clients: one port, several implementations, one contract test."""
