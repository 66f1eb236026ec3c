"""What this node offers to each collector, and what is missing.

A subject is a module with `CHECKS`, a table of questions; `subjects.py` lists the modules. Whoever
adds a source of numbers adds its questions there.
"""
