"""The state of a whole cluster as its scheduler tells it."""
