"""What a training run has changed: its first evaluation against its last."""

from collections.abc import Iterator
import pathlib

from dualenc_jax.results import significance
from dualenc_jax.results.folder import read_per_query

SPLIT = 'validation'
# In MODEL_DIR/validation: values of all queries before and after training.
BEFORE, AFTER = 'before.tsv', 'after.tsv'
# Of a cross-encoder, what it orders.
BM25_FILE = 'bm25.tsv'
# What is told at the end, the first that there is.
_METRICS = ('MRR', 'nDCG@10', 'Top-20', 'log_likelihood')


def verdict(model_dir: pathlib.Path) -> Iterator[str]:
  """Lines on each sub-corpus: before, after, and whether that is chance."""
  folder = model_dir / SPLIT
  for after in sorted(folder.glob(f'**/{AFTER}')):
    group = after.parent.relative_to(folder.parent)
    found = _compared(after.with_name(BEFORE), after)
    if found is None:
      continue
    metric, pair = found
    yield (
        f'{group}, {pair.queries:,} queries, before training and after:'
        f' {pair.describe(metric)}.'
    )
    if pair.after < pair.before and pair.p < 0.05:
      yield (
          f'WARNING: {group} is worse than before training. Try a lower'
          ' LEARNING_RATE, a larger BATCH_SIZE, fewer STEPS, and look at the'
          ' data by `dualenc data check`: false negatives and wrong pairs'
          ' are the most frequent causes.'
      )
    if found := _compared(after.with_name(BM25_FILE), after):
      metric, pair = found
      yield f'{group}, BM25 and re-ranked: {pair.describe(metric)}.'
      if pair.after <= pair.before:
        yield (
            'WARNING: it does not beat BM25, whose hits it orders, so it is no'
            ' teacher yet. Train it longer, from a pretrained T5, or with'
            ' harder negatives.'
        )


def _compared(
    before: pathlib.Path, after: pathlib.Path
) -> tuple[str, significance.Paired] | None:
  """A metric that both files have, of the same queries, and its values."""
  if not (before.exists() and after.exists()):
    return None
  one, other = read_per_query(before), read_per_query(after)
  metric = next((m for m in _METRICS if m in one.values), None)
  if metric is None or [*one.query_ids] != [*other.query_ids]:
    return None
  return metric, significance.paired(one.values[metric], other.values[metric])
