"""Runs work in the background: a session of its own, no terminal, and a message to the caller."""

import os
import sys
from collections.abc import Callable

Tell = Callable[[str], None]


def detached(work: Callable[[Tell], int]) -> int:
    """Do the work in a process of its own; returns after its first message, or its failure.

    The message's first line goes to standard output, everything else to standard error.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _background(work, writer)
    os.close(writer)
    with os.fdopen(reader) as answer:
        word = answer.read()
    if word:
        first, _, rest = word.partition("\n")
        print(first, flush=True)
        if rest:
            print(f"batchjob: {rest}", file=sys.stderr, flush=True)
        return 0
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def _background(work: Callable[[Tell], int], writer: int) -> None:
    status = 125
    try:
        os.setsid()
        told: list[str] = []
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)

        def tell(word: str) -> None:
            if not told:
                os.write(writer, word.encode())
                os.close(writer)
                for number in (1, 2):
                    os.dup2(null, number)
            told.append(word)

        status = work(tell)
    finally:
        sys.stderr.flush()
        os._exit(status)
