import logging

logging.getLogger("alembic").setLevel(logging.WARNING)  # it logs each of its own steps
