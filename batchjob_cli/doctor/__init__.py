"""Checks what this node offers to each collector, and what is missing.

A subject is a module with `CHECKS`, a table of checks; `command.py` lists them. A new
source of metrics adds its checks there.
"""
