"""Builds what sites install: wheel, sdist, one-file exporter, Debian and RPM packages."""
