"""Hosts that share work part by part, without a common mesh."""

from typing import NamedTuple


class Host(NamedTuple):
  """Which of the hosts that share the work this process is."""

  index: int = 0
  count: int = 1
