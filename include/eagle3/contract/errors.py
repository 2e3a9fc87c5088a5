"""The two families of errors: what the user can fix, and what the job did."""


class ConfigError(Exception):
    """The user can fix it; trying again unchanged cannot help. Fails a task without a retry."""


class JobFailed(Exception):
    """A remote job ended badly.

    `reason` is a short machine-readable name (`exit_code`, `signal`, `vanished`, ...); the message is for a person:
    what failed, on which host and path, the decisive line, and the command to look further.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
