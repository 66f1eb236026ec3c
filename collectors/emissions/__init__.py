"""Emission factors of electricity, from a static table and from live providers."""
