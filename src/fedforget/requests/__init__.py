"""The life of a request: accepted, decided, carried out, recorded."""
