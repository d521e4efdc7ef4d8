"""Methods of federated unlearning behind one small interface, so that they can be compared."""
