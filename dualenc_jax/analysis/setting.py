"""What a figure must say of itself: data, models, seed."""

from collections.abc import Mapping
import dataclasses

import numpy as np

from dualenc_jax.analysis.sample import RELEVANT, Sample


@dataclasses.dataclass(frozen=True)
class Setting:
  """Of what the figures are made.

  Attributes:
    label: of the task.
    split: of the queries.
    sample: of queries and passages.
    steps: of each model's checkpoint, by the model's name.
    mapped: how many queries, and passages, the maps show at most.
  """

  label: str
  split: str
  sample: Sample
  steps: Mapping[str, int]
  mapped: int

  @property
  def where(self) -> str:
    """Data, models and seed, to end a caption with."""
    models = ', '.join(f'{n} (step {step:,})' for n, step in self.steps.items())
    return (
        f'{self.label}, split {self.split}; {models}; seed {self.sample.seed}.'
    )

  def drawn(self, most: int | None = None) -> str:
    """How many queries and passages, and how they were drawn."""
    sample = self.sample
    retrieval_set = sample.retrieval_set
    queries = _part(sample.queries[:most], len(retrieval_set.query_ids))
    passages = _part(sample.passages[:most], len(retrieval_set.corpus))
    relevant = ' (relevant for them)' if sample.kind == RELEVANT else ''
    return f'{queries} queries and {passages} passages{relevant}'

  @property
  def searched(self) -> str:
    """What the best hits were looked for in."""
    whole = len(self.sample.retrieval_set.corpus)
    return f'the {_part(self.sample.searched, whole)} passages'


def _part(rows: np.ndarray, whole: int) -> str:
  count = len(rows)
  return f'{count:,}' if count == whole else f'{count:,} of {whole:,}'
