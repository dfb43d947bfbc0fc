"""The files of `dualenc label`, and the quality of its labels."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses

import numpy as np

from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.pipelines.mining import labels
from dualenc_jax.pipelines.mining.labels import (
  Candidate,
  Labelled,
  Pool,
  Rules,
  Truth,
)

PAIRS, REPORT, FACTS = 'pairs.jsonl', 'report.md', 'labels.json'
# Beside those that were asked for; of PAIR's table 5.
_THRESHOLDS = ((0.9, 0.1), (0.8, 0.2), (0.7, 0.3), (0.6, 0.4))


def rows(
    ranked: RetrievalSet, labelled: Sequence[Labelled]
) -> Iterator[dict[str, object]]:
  """Rows of `tasks/pairs.gin`, with origin and probability of each label."""
  corpus, queries = ranked.corpus, ranked.query_texts
  for each in labelled:
    positives, negatives = each.positives, each.negatives
    yield {
        'query_id': ranked.query_ids[each.query],
        'query': queries[each.query],
        'passage_id': [corpus.ids[c.passage] for c in positives],
        'passage': [corpus.texts[c.passage] for c in positives],
        'negatives': [corpus.texts[c.passage] for c in negatives],
        'origin': each.origins,
        'positive_scores': [c.score for c in positives],
        'positive_probabilities': [c.probability for c in positives],
        'negative_scores': [c.score for c in negatives],
        'negative_probabilities': [c.probability for c in negatives],
    }


def report(
    counts: Mapping[str, int],
    pools: Mapping[int, Pool],
    known: Mapping[int, Sequence[Candidate]],
    truth: Truth | None,
    rules: Rules,
) -> Iterator[str]:
  """Lines of Markdown: counts, and, where there is a truth, how good."""
  yield '# Labels\n'
  yield '| | |'
  yield '|---|---|'
  for name, value in counts.items():
    yield f'| {name.replace("_", " ")} | {value} |'
  if truth is None:
    yield '\nWithout --truth nothing says how many of the labels are right.'
    return
  yield '\n## Agreement with the truth\n'
  yield '| thresholds | coverage | positives right | negatives right | judged |'
  yield '|---|---|---|---|---|'
  pairs = dict.fromkeys([(rules.above, rules.below), *_THRESHOLDS])
  for above, below in pairs:
    which = 'best' if rules.positives == 'none' else rules.positives
    own = dataclasses.replace(
        rules, above=above, below=below, positives=which
    )
    found = labels.agreement(pools, known, truth, own)
    yield (
        f'| {above:g} / {below:g} | {found.coverage:.1%} |'
        f' {_percent(found.positives)} | {_percent(found.negatives)} |'
        f' {found.judged[0]:,}, {found.judged[1]:,} |'
    )


def _percent(share: float) -> str:
  return '-' if np.isnan(share) else f'{share:.1%}'
