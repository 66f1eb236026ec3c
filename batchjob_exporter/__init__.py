"""The daemon on each compute node: answers Prometheus with what the collectors read."""
