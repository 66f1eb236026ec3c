"""The error of a Redfish service without a power reading."""

# The values of the label `reason`; the first five are those of `batchjob.runtime.http_client`.
REASONS = (
    "deadline",
    "malformed",
    "tls",
    "too_large",
    "unreachable",
    "ambiguous",  # several computer systems, and none is named
    "authentication",
    "implausible",  # far more watts than before, or than any node takes
    "no_reading",  # it answers, but shows no power (now)
    "status",  # an HTTP status that is no success
)


class RedfishError(Exception):
    """No value, and why: one of REASONS."""

    def __init__(self, reason: str, message: str) -> None:
        assert reason in REASONS
        super().__init__(message)
        self.reason = reason
