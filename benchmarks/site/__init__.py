"""A whole site, from simulated nodes to the pages that people ask for: see __main__.py."""
