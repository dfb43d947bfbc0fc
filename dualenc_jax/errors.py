"""The one error type that a user is meant to read."""


class UserError(ValueError):
  """Bad input. The message names the culprit, what was expected, and the fix.

  The command line prints it without a traceback and exits with status 2.
  """


class SourceUnavailable(UserError):
  """The examples of a task cannot be read here; a prepared cache may serve."""
