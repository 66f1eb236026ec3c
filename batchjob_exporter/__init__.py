"""The daemon on each compute node, which serves the collectors' metrics to Prometheus."""
