"""The state of a whole cluster, as its scheduler reports it."""
