"""Generates the dashboards in `grafana/dashboards`: `python -m grafana.generate`."""
