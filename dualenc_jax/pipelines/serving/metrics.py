"""Numbers of a running server, in Prometheus' text form 0.0.4."""

import bisect
import collections
from collections.abc import Iterator, Sequence

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_TEXTS = (1, 2, 4, 8, 16, 32)


class Histogram:
  """Values counted by upper bounds, and their sum."""

  def __init__(self, bounds: Sequence[float]):
    self._bounds = bounds
    self._counts = [0] * (len(bounds) + 1)
    self._sum = 0.0

  def add(self, value: float) -> None:
    self._counts[bisect.bisect_left(self._bounds, value)] += 1
    self._sum += value

  def lines(self, name: str, label: str = '') -> Iterator[str]:
    """Yields its lines; a label is such as 'path="/search"'."""
    total, comma = 0, ',' * bool(label)
    for bound, count in zip((*self._bounds, '+Inf'), self._counts):
      total += count
      yield f'{name}_bucket{{{label}{comma}le="{bound}"}} {total}'
    braces = f'{{{label}}}' if label else ''
    yield f'{name}_sum{braces} {self._sum:.6f}'
    yield f'{name}_count{braces} {total}'


class Metrics:
  """Counters of a server."""

  def __init__(self) -> None:
    self._requests: collections.Counter[tuple[str, int]] = (
        collections.Counter()
    )
    self._seconds: dict[str, Histogram] = {}
    self._texts = Histogram(_TEXTS)
    self._busy = Histogram(_SECONDS)

  def add_request(self, path: str, status: int, seconds: float) -> None:
    """Counts an answer; `path` is one of few."""
    self._requests[path, status] += 1
    self._seconds.setdefault(path, Histogram(_SECONDS)).add(seconds)

  def add_batch(self, texts: int, seconds: float) -> None:
    """Counts a batch that the models have computed."""
    self._texts.add(texts)
    self._busy.add(seconds)

  def text(self, waiting: int) -> str:
    """All numbers; `waiting` texts are not in a batch yet."""
    return ''.join(f'{line}\n' for line in self._lines(waiting))

  def _lines(self, waiting: int) -> Iterator[str]:
    name = 'dualenc_requests_total'
    yield from _head(name, 'counter', 'Answers by path and HTTP status.')
    for (path, status), count in sorted(self._requests.items()):
      yield f'{name}{{path="{path}",status="{status}"}} {count}'
    name = 'dualenc_request_seconds'
    yield from _head(name, 'histogram', 'Seconds from a request to its answer.')
    for path, seconds in sorted(self._seconds.items()):
      yield from seconds.lines(name, f'path="{path}"')
    name = 'dualenc_batch_texts'
    yield from _head(name, 'histogram', 'Texts that were computed together.')
    yield from self._texts.lines(name)
    name = 'dualenc_batch_seconds'
    yield from _head(name, 'histogram', 'Seconds that a batch was computed.')
    yield from self._busy.lines(name)
    name = 'dualenc_waiting_texts'
    yield from _head(name, 'gauge', 'Texts that wait for their batch.')
    yield f'{name} {waiting}'


def _head(name: str, kind: str, meaning: str) -> list[str]:
  return [f'# HELP {name} {meaning}', f'# TYPE {name} {kind}']
