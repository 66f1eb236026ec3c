import logging

logging.getLogger("alembic").setLevel(logging.WARNING)  # it logs its own steps, some when loaded
