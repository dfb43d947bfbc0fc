"""A file of mined hard negatives, joined to queries by their ids."""

from collections.abc import Collection, Iterator, Mapping, Sequence
import dataclasses
import itertools
import json
import logging
import pathlib
from typing import NamedTuple

from dualenc_jax.errors import UserError
from dualenc_jax.readers import bad_rows, hard_negatives_forms, rows
from dualenc_jax.readers.hard_negatives_forms import Negative
from dualenc_jax.readers.text_table import TextTable
from dualenc_jax.suggest import did_you_mean


class _Line(NamedTuple):
  """What is taken of a line.

  Attributes:
    query_id: of the query.
    systems: names of the systems whose negatives it has.
    negatives: without positives, not more than the limit.
    dropped: positives that came before these.
  """

  query_id: str
  systems: Collection[str]
  negatives: Sequence[Negative]
  dropped: int


@dataclasses.dataclass(frozen=True)
class HardNegatives:
  """A file of hard negatives by query id, plain or .gz.

  It is of any form that `hard_negatives_forms.parse` knows. A query's negatives
  are the best of each system, then the second best of each, and so on, each
  passage once. One with an id is a passage of the corpus, also where the file
  has its text, so that all passages look alike.

  Attributes:
    path: the file.
    systems: whose negatives to take, in this order; None for all, in the order
      of the file.
    limit: most negatives that are taken of a query.
    strict: as of `rows.parsed`, and whether a positive of a query among the
      negatives to take is an error; else just these are left out and the log
      says how many. Within `bad_rows.collecting` they are collected.
  """

  path: pathlib.Path
  systems: Sequence[str] | None = None
  limit: int = 30
  strict: bool = True

  def read(
      self, positives: Mapping[str, Collection[str]]
  ) -> Iterator[tuple[str, list[Negative]]]:
    """Yields (query id, hard negatives), each query once at most.

    Args:
      positives: passage ids by query id; other queries are left out.

    Raises:
      UserError: a bad row, a positive among the negatives, a query in two
        places of the file, or a system that is nowhere in it.
    """
    systems, done, dropped = set(), set(), 0
    parsed = rows.parsed(
        self.path, lambda line: self._parse(line, positives), self.strict
    )
    for query_id, group in itertools.groupby(parsed, _query_id):
      numbers, lines = zip(*group)
      systems.update(*(line.systems for line in lines))
      if query_id not in positives:
        continue
      location = f'{self.path}:{numbers[0]}'
      if query_id in done:
        raise UserError(
            f'{location}: query {query_id!r} came before, and other queries'
            ' between. Expected all of a query in one place.'
        )
      done.add(query_id)
      found = sum(line.dropped for line in lines)
      if found:
        dropped += found
        self._found_positives(query_id, location)
      merged = dict.fromkeys(n for line in lines for n in line.negatives)
      yield query_id, list(merged)[: self.limit]
    self._check_systems(systems)
    log = logging.getLogger(__name__)
    log.info(
        '%s: hard negatives for %s of %s queries.',
        self.path,
        f'{len(done):,}',
        f'{len(positives):,}',
    )
    if dropped:
      log.warning(
          '%s: dropped %s hard negatives that are positives of their queries.',
          self.path,
          f'{dropped:,}',
      )

  def _parse(
      self, line: bytes, positives: Mapping[str, Collection[str]]
  ) -> _Line:
    mined = hard_negatives_forms.parse(line)
    if mined.query_id not in positives:
      return _Line(mined.query_id, mined.negatives, (), 0)
    known = {*positives[mined.query_id], *mined.positive_ids()}
    systems = mined.negatives if self.systems is None else self.systems
    kept, dropped = {}, 0
    for negative in mined.ranked(tuple(systems)):
      if negative.id in known:
        dropped += 1
        continue
      kept[negative] = None
      if len(kept) == self.limit:
        break
    return _Line(mined.query_id, mined.negatives, tuple(kept), dropped)

  def _found_positives(self, query_id: str, location: str) -> None:
    collected = bad_rows.collected()
    if collected is not None:
      collected.add('a positive is among the hard negatives', location)
    elif self.strict:
      raise UserError(
          f'{location}: query {query_id!r} has one of its positives among its'
          ' hard negatives. Mend the file, or leave out such negatives with'
          f' {rows.LENIENT}.'
      )

  def _check_systems(self, found: Collection[str]) -> None:
    for system in self.systems or ():
      if system not in found:
        raise UserError(
            f'{self.path} has no hard negatives of a system {system!r}.'
            f'{did_you_mean(system, found)} Systems:'
            f' {", ".join(sorted(found)) or "none"}.'
        )


def of_query(table: TextTable, query_id: str) -> list[Negative]:
  """A query's hard negatives in a table of JSON, none if it is not there."""
  return [Negative(*entry) for entry in json.loads(table.get(query_id) or '[]')]


def _query_id(numbered: tuple[int, _Line]) -> str:
  return numbered[1].query_id
