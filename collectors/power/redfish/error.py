"""The error of a Redfish service without a power reading."""

# The values of the label `reason`. The first five are those of `batchjob.runtime.http_client`.
REASONS = (
    "deadline",
    "malformed",
    "tls",
    "too_large",
    "unreachable",
    "ambiguous",  # several computer systems, and none is configured
    "authentication",
    "implausible",  # far more watts than before, or than any node draws
    "no_reading",  # the service answers, but reports no power (now)
    "status",  # an unsuccessful HTTP status
)


class RedfishError(Exception):
    """No value could be read; `reason` is one of REASONS."""

    def __init__(self, reason: str, message: str) -> None:
        assert reason in REASONS
        super().__init__(message)
        self.reason = reason
