"""A request's life: taken in, decided, carried out, recorded."""
