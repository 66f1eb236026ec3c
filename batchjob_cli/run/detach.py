"""Runs a function in the background: in a session of its own, with a message to the caller."""

import os
import sys
from collections.abc import Callable

SendMessage = Callable[[str], None]


def run_detached(work: Callable[[SendMessage], int]) -> int:
    """Do the work in a process of its own; returns after its first message, or its failure.

    The message's first line goes to standard output, everything else to standard error.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _run_in_background(work, writer)
    os.close(writer)
    with os.fdopen(reader) as answer:
        message = answer.read()
    if message:
        first, _, rest = message.partition("\n")
        print(first, flush=True)
        if rest:
            print(f"batchjob: {rest}", file=sys.stderr, flush=True)
        return 0
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def _run_in_background(work: Callable[[SendMessage], int], writer: int) -> None:
    status = 125
    try:
        os.setsid()
        sent: list[str] = []
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)

        def send_message(message: str) -> None:
            if not sent:
                os.write(writer, message.encode())
                os.close(writer)
                for number in (1, 2):
                    os.dup2(null, number)
            sent.append(message)

        status = work(send_message)
    finally:
        sys.stderr.flush()
        os._exit(status)
