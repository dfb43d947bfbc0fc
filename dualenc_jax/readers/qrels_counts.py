"""Counts of a benchmark as it was read, beside the published ones."""

from collections.abc import Mapping
import logging

from dualenc_jax.errors import UserError
from dualenc_jax.readers import bad_rows


def compare(
    what: str,
    found: Mapping[str, int],
    published: Mapping[str, int],
    tolerance: float,
    advice: str,
) -> None:
  """Logs counts beside the published ones.

  Within `bad_rows.collecting` wrong ones are collected.

  Args:
    what: they are of.
    found: counts by name.
    published: the same, as far as they are known.
    tolerance: most that a count may differ from its published one, as a share
      of that.
    advice: what to do about wrong ones, for the error.

  Raises:
    UserError: one differs by more.
  """
  wrong = []
  for name, count in found.items():
    if name not in published:
      logging.getLogger(__name__).info('%s: %s %s.', what, f'{count:,}', name)
      continue
    line = f'{count:,} {name}, published {published[name]:,}'
    logging.getLogger(__name__).info('%s: %s.', what, line)
    if tolerance < 1 and (
        abs(count - published[name]) > tolerance * published[name]
    ):
      wrong.append(line)
  collected = bad_rows.collected()
  if collected is not None:
    for line in wrong:
      collected.add(line, what)
  elif wrong:
    raise UserError(
        f'{what}: {"; ".join(wrong)}; the tolerance is {tolerance:g}. Is the'
        f' download whole, and of the right version? {advice}'
    )
