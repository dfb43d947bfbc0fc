"""The files of `dualenc mine`, and its report."""

from collections.abc import Iterator, Mapping, Sequence
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.pipelines.mining.filters import Kept
from dualenc_jax.pipelines.mining.negatives import Negative
from dualenc_jax.utils import files

PAIRS, BY_ID = 'pairs.jsonl', 'hard-negatives.jsonl'
REPORT, FACTS = 'report.md', 'mined.json'
_EXAMPLES, _SHOWN, _LETTERS = 20, 3, 240


def write(
    folder: pathlib.Path,
    ranked: RetrievalSet,
    kept: Sequence[Kept],
    chosen: Sequence[Sequence[Negative]],
    by_teacher: bool,
    facts: Mapping[str, Any],
    margins: str = '',
) -> None:
  """Writes training pairs, hard negatives by id, and a report.

  Args:
    folder: an existing one.
    ranked: queries and corpus.
    kept: candidates of each source.
    chosen: hard negatives of each query.
    by_teacher: whether scores are a teacher's, which are written to learn from.
    facts: what the files depend on.
    margins: a line on those of a teacher.
  """
  counts = {each.candidates.name: each.counts for each in kept}
  # First: without them a run that is killed would leave files of nobody.
  files.write_json(folder / FACTS, {**facts, 'counts': counts})
  found = ranked, kept, chosen, by_teacher
  files.write_json_lines(folder / PAIRS, _pairs(*found))
  files.write_json_lines(folder / BY_ID, _by_id(*found))
  text = '\n'.join(_report(ranked, kept, chosen, margins))
  files.write(folder / REPORT, text + '\n')


def _pairs(
    ranked: RetrievalSet,
    kept: Sequence[Kept],
    chosen: Sequence[Sequence[Negative]],
    by_teacher: bool,
) -> Iterator[dict[str, Any]]:
  """Rows of `tasks/pairs.gin`, one a query that has a positive."""
  corpus, queries = ranked.corpus, ranked.query_texts
  for query, positives in enumerate(ranked.gold):
    if not positives:
      continue
    negatives = chosen[query]
    row = {
        'query_id': ranked.query_ids[query],
        'query': queries[query],
        'passage_id': [corpus.ids[p] for p in positives],
        'passage': [corpus.texts[p] for p in positives],
        'negatives': [corpus.texts[n.passage] for n in negatives],
    }
    if by_teacher:
      own = _own_scores(kept, query)
      row['positive_scores'] = own
      row['negative_scores'] = [n.score for n in negatives]
    yield row


def _by_id(
    ranked: RetrievalSet,
    kept: Sequence[Kept],
    chosen: Sequence[Sequence[Negative]],
    by_teacher: bool,
) -> Iterator[dict[str, Any]]:
  """Rows of sentence-transformers' and GPL's form."""
  ids = ranked.corpus.ids

  def entry(passage: int, score: float) -> Any:
    name = ids[passage]
    return {'pid': name, 'ce-score': score} if by_teacher else name

  for query, (positives, negatives) in enumerate(zip(ranked.gold, chosen)):
    if not negatives:
      continue
    own = _own_scores(kept, query)
    lists: dict[str, list[Any]] = {}
    for n in negatives:
      lists.setdefault(n.source, []).append(entry(n.passage, n.score))
    yield {
        'qid': ranked.query_ids[query],
        'pos': [entry(p, score) for p, score in zip(positives, own)],
        'neg': lists,
    }


def _own_scores(kept: Sequence[Kept], query: int) -> list[float]:
  """The scores of a query's positives; a teacher's are alike in all sources."""
  return kept[0].candidates.positives[query].tolist()


def _report(
    ranked: RetrievalSet,
    kept: Sequence[Kept],
    chosen: Sequence[Sequence[Negative]],
    margins: str,
) -> Iterator[str]:
  """Lines of Markdown: what was left out, margins, and examples to read."""
  yield '# Hard negatives\n'
  yield from counted(kept)
  yield f'\n{summary(chosen)}'
  if margins:
    yield f'\n{margins}'
  yield '\n## Examples\n'
  with_some = np.flatnonzero([len(each) for each in chosen])
  rng = np.random.default_rng(0)
  for query in np.sort(rng.permutation(with_some)[:_EXAMPLES]).tolist():
    yield f'- **{_cut(ranked.query_texts[query])}**'
    for positive in ranked.gold[query][:1]:
      yield f'  - positive: {_cut(ranked.corpus.texts[positive])}'
    for n in chosen[query][:_SHOWN]:
      text = _cut(ranked.corpus.texts[n.passage])
      yield f'  - {n.source}, rank {n.rank}, score {n.score:.3f}: {text}'


def summary(chosen: Sequence[Sequence[Negative]]) -> str:
  """How many hard negatives there are, and how many queries have none."""
  count, whole = sum(map(len, chosen)), len(chosen)
  with_some = sum(map(bool, chosen))
  if not count:
    return f'None of {whole:,} queries has a hard negative.'
  rest = whole - with_some
  which = f'{with_some:,} of {whole:,}' if rest else f'All {whole:,}'
  others = f'; the other {rest:,} have none' if rest else ''
  return f'{which} queries have hard negatives, {count:,} in all{others}.'


def counted(kept: Sequence[Kept]) -> Iterator[str]:
  """A table of how many candidates each rule left out, a column a source."""
  names = [each.candidates.name for each in kept]
  yield f'| | {" | ".join(names)} |'
  yield '|---' * (len(names) + 1) + '|'
  for what in dict.fromkeys(what for each in kept for what in each.counts):
    cells = (f'{each.counts.get(what, 0):,}' for each in kept)
    yield f'| {what} | {" | ".join(cells)} |'


def _cut(text: str) -> str:
  flat = ' '.join(text.split())
  return flat if len(flat) <= _LETTERS else flat[:_LETTERS] + '…'
