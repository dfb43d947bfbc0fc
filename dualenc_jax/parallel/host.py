"""`Host`, the share of one host in work that hosts do part by part."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Host:
  """Which of the hosts that share the work this process is."""

  index: int = 0
  count: int = 1
