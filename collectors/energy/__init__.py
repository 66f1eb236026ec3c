"""The energy of the node and of its jobs: meters, the choice of one, and attribution."""
