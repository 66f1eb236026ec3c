"""Checks what this node offers to each collector, and what is missing.

A subject is a module with `CHECKS`, a table of checks; `report.py` lists the modules. A new
source of metrics adds its checks there.
"""
