"""Where a page ended, as an opaque word that fits only the question it came from."""

import base64
import binascii
import hashlib
import json

from batchjob_stats_db.queries.jobs import After
from batchjob_stats_server.problems import Problem

_LARGEST = 2**63


def encode(question: str, start_time: int | None, job_id: int) -> str:
    """The word for a page that ended with this job."""
    text = json.dumps([_digest(question), start_time or 0, job_id])
    return base64.urlsafe_b64encode(text.encode()).decode()


def decode(question: str, word: str) -> After:
    """The place; a word that is none, or of another question, is a problem."""
    try:
        digest, *place = json.loads(base64.b64decode(word, b"-_", validate=True))
    except (binascii.Error, ValueError, TypeError) as error:
        raise Problem(422, "cursor: expected what an answer's `next` link had") from error
    numbers = all(type(number) is int and 0 <= number < _LARGEST for number in place)
    if digest != _digest(question) or len(place) != 2 or not numbers:
        raise Problem(422, "cursor: it belongs to another question")
    return After(*place)


def _digest(question: str) -> str:
    return hashlib.sha256(question.encode()).hexdigest()[:16]
