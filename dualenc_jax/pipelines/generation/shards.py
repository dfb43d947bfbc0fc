"""Generation of queries shard by shard, so that a kill costs one shard."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import json
import logging
import math
import os
import pathlib
import shutil
from typing import Any

from dualenc_jax.data.text.words import words
from dualenc_jax.parallel.hosts import Host
from dualenc_jax.pipelines.generation.corpus import Passage
from dualenc_jax.pipelines.generation.generator import Generator, Query
from dualenc_jax.pipelines.generation.sampling import Sampling
from dualenc_jax.utils import files, json_file
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.progress import Progress

FACTS = 'facts.json'
# Passages of a shard.
SHARD = 1024
# A generator is refused by so large a share of its queries, of so many at
# least, plus two standard errors.
_MOST, _JUDGED = 0.5, 20
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Shards:
  """Files of generated queries.

  Attributes:
    folder: one file of JSON Lines a shard, and facts.json.
    passages: all that queries are generated for.
    count: queries a passage.
    sampling: how tokens are drawn.
    length: most tokens of a query, EOS included.
    seed: 0 or more.
  """

  folder: pathlib.Path
  passages: Sequence[Passage]
  count: int
  sampling: Sampling
  length: int
  seed: int

  def __len__(self) -> int:
    return -(-len(self.passages) // SHARD)

  def facts(self, source: Mapping[str, Any]) -> dict[str, Any]:
    """JSON that determines the queries; `source` of generator and corpus."""
    return {
        **source,
        'passages': len(self.passages),
        'queries_per_passage': self.count,
        **dataclasses.asdict(self.sampling),
        'length': self.length,
        'seed': self.seed,
    }

  def check(self, facts: Mapping[str, Any], replace: bool = False) -> None:
    """Makes the folder of these facts, or checks that it has them.

    Raises:
      UserError: it has queries of other facts, and not `replace`.
    """
    files.make_folder(self.folder, 'another --output_dir')
    path = self.folder / FACTS
    if not path.exists():
      if any(self.folder.glob('*.jsonl')):
        raise UserError(
            f'{self.folder} has queries, but no {FACTS}, which describes their'
            ' run. Remove the folder, or give another --output_dir.'
        )
      files.write_json(path, facts)
      return
    saved = json_file.read(path, f'Remove {self.folder} to generate anew.')
    known = json.loads(json.dumps(facts))
    changes = [
        f'{name}: {saved.get(name)} -> {known.get(name)}'
        for name in sorted(saved.keys() | known.keys())
        if saved.get(name) != known.get(name)
    ]
    if changes and replace:
      # Renamed first, so that a kill leaves no part of it here.
      aside = self.folder.with_name(f'{self.folder.name}.{os.getpid()}.old')
      self.folder.rename(aside)
      shutil.rmtree(aside)
      self.check(facts)
    elif changes:
      raise UserError(
          f'{self.folder} has queries of another run ({"; ".join(changes)}).'
          ' Give another --output_dir, or --overwrite to make them anew.'
      )

  def path(self, shard: int) -> pathlib.Path:
    return self.folder / f'{shard:05}.jsonl'

  def missing(self) -> list[int]:
    return [i for i in range(len(self)) if not self.path(i).exists()]

  def write(self, generator: Generator, host: Host = Host()) -> int:
    """Generates this host's missing shards; returns how many passages were cut.

    Raises:
      UserError: the queries of the first are empty, or all the same.
    """
    own = [i for i in self.missing() if i % host.count == host.index]
    total = sum(len(self.passages_of(i)) for i in own) * self.count
    cut = 0
    with Progress('Generating', total, 'queries') as progress:
      for shard in own:
        some = self.passages_of(shard)
        sources, is_cut = generator.read([passage.text for passage in some])
        cut += int(is_cut.sum())
        found: list[list[Query]] = [[] for _ in some]
        ids = [passage.id for passage in some]
        for query in generator.write(
            sources, ids, self.count, self.sampling, self.length, self.seed
        ):
          found[query.passage].append(query)
          progress(1)
        problem = find_problem([
            (query.text, passage.text)
            for passage, each in zip(some, found)
            for query in each
        ])
        if problem and shard == own[0]:
          raise UserError(problem)
        if problem:
          _LOG.warning('Shard %d: %s', shard, problem)
        lines = ''
        for passage, each in zip(some, found):
          written = [
              [q.text, round(q.log_probability, 6), q.ended]
              for q in sorted(each, key=lambda q: q.number)
          ]
          row = {'_id': passage.id, 'queries': written}
          lines += json.dumps(row, ensure_ascii=False) + '\n'
        files.write(self.path(shard), lines, 'another --output_dir', sync=True)
    return cut

  def read(self) -> Iterator[Query]:
    """All queries, in the order of the passages.

    Raises:
      UserError: a shard is damaged.
    """
    for shard in range(len(self)):
      path = self.path(shard)
      again = f'Remove {path}, and run the same command again.'
      rows = json_file.read_lines(path, again)
      for number, (_, row) in enumerate(rows, start=shard * SHARD):
        for i, (text, chance, ended) in enumerate(row['queries']):
          yield Query(number, i, text, chance, ended)

  def passages_of(self, shard: int) -> Sequence[Passage]:
    return self.passages[shard * SHARD : (shard + 1) * SHARD]


def keep_distinct(
    queries: Iterable[Query], counts: Counter[str]
) -> Iterator[Query]:
  """Yields queries, without those that are empty or repeated.

  Args:
    queries: in the order of their passages.
    counts: queries left out by cause, updated.
  """
  seen: set[tuple[int, str]] = set()
  for query in queries:
    key = query.passage, ' '.join(words(query.text)) or query.text
    if not query.text:
      counts['empty'] += 1
    elif key in seen:
      counts['repeated for their passage'] += 1
    else:
      seen.add(key)
      yield query


def find_problem(pairs: Sequence[tuple[str, str]]) -> str | None:
  """Why a retriever cannot learn from (query, passage) pairs, or None."""
  count = len(pairs)
  if count < _JUDGED:
    return None
  (text, times), = Counter(query for query, _ in pairs).most_common(1)
  several = len({passage for _, passage in pairs}) > 1
  if (several or not text) and times / count > _MOST + 1 / math.sqrt(count):
    return (
        f'{times / count:.0%} of {count:,} queries are {text!r}, whatever the'
        ' passage says: the generator has not learnt to write queries. Train it'
        ' longer, or give another.'
    )
  return None
