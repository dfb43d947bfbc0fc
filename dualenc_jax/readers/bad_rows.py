"""Bad rows collected, instead of an error at the first one."""

from collections.abc import Iterator
import contextlib
import contextvars
import dataclasses

SHOWN = 3


@dataclasses.dataclass
class Found:
  """Something that is counted.

  Attributes:
    count: how often it is there.
    places: of the first few, 'file:line', perhaps with more to say.
  """

  count: int = 0
  places: list[str] = dataclasses.field(default_factory=list)

  def add(self, place: str) -> None:
    self.count += 1
    if len(self.places) < SHOWN:
      self.places.append(place)


class BadRows(dict[str, Found]):
  """Bad rows by reason; those beyond `REASONS` reasons are `OTHERS`."""

  REASONS = 20
  OTHERS = 'other reasons'

  def add(self, reason: str, place: str) -> None:
    # A reason may quote the row: there may be as many as rows.
    if len(self) >= self.REASONS and reason not in self:
      reason = self.OTHERS
    self.setdefault(reason, Found()).add(place)


_COLLECTED = contextvars.ContextVar('bad rows collected', default=None)


@contextlib.contextmanager
def collecting() -> Iterator[BadRows]:
  """Within it readers leave bad rows out, whatever their policy.

  Yields:
    Where they are counted.
  """
  bad = BadRows()
  token = _COLLECTED.set(bad)
  try:
    yield bad
  finally:
    _COLLECTED.reset(token)


def collected() -> BadRows | None:
  """What `collecting` has yielded; None outside of it."""
  return _COLLECTED.get()
