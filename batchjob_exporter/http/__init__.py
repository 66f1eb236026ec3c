"""The exporter's own small HTTP server."""
