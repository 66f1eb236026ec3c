"""The token of a start: in a file that its owner alone may read, and good until the next start.

Other people may reach a port of loopback too, so having it open is not enough to be believed.
"""

import os
import tempfile
import time
from pathlib import Path

from sqlalchemy.engine import Engine

from batchjob_stats_db import tokens

LABEL = "batchjob up"
FILE = "token"


def renew(engine: Engine, user: str, data: Path) -> str:
    """Make a token, revoke that of the start before, and write the file; raises OSError."""
    with engine.begin() as db:
        for old in tokens.listed(db, user):
            if old.label == LABEL:
                tokens.revoke(db, old.id)
        text = tokens.create(db, user, tokens.TokenRole.ADMIN, LABEL, int(time.time()))
    descriptor, temporary = tempfile.mkstemp(prefix=f".{FILE}-", dir=data)  # mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{text}\n")
        Path(temporary).replace(data / FILE)
    except BaseException:
        Path(temporary).unlink()
        raise
    return text
