"""Flower: reaching nodes by its Grid, starting its simulations, and the ClientApp. Only this folder uses flwr."""
