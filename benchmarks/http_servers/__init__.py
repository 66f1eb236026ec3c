"""Ways to serve an exporter's metrics, to be compared."""
