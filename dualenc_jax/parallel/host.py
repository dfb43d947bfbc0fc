"""Hosts that share work part by part, without a common mesh."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Host:
  """Which of the hosts that share the work this process is."""

  index: int = 0
  count: int = 1
