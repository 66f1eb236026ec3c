import logging

logging.getLogger("alembic").setLevel(logging.WARNING)  # it logs a line for each step of its own
