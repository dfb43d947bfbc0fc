"""Samples, embeds and measures what a model makes of a split."""

from collections.abc import Sequence
import dataclasses
import logging
import pathlib

from dualenc_jax.analysis import (
  dims as dims_lib,
  lengths as lengths_lib,
  numbers as numbers_lib,
  sample as sample_lib,
  vectors as vectors_lib,
)
from dualenc_jax.analysis.output import Analysis
from dualenc_jax.errors import UserError
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.index import of_model
from dualenc_jax.inference.towers import Loaded
from dualenc_jax.interop import truncation
from dualenc_jax.interop.own import TRAINED_DIMS
from dualenc_jax.run.experiment import Experiment

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Options:
  """What is drawn of a split.

  Attributes:
    mapped: queries, and passages, on the maps.
    measured: queries, and passages, of numbers and histograms, those on the
      maps among them.
    kind: which passages: `sample.RANDOM` or `sample.RELEVANT`.
    seed: of all draws.
    max_passages: how many passages are encoded and searched, the relevant ones
      among them; None for the whole corpus.
    ranked: how many queries, the first ones, need the rank of their relevant
      passage.
    dims: of how many first components the quality is measured; None for
      `dims.default_dims`.
  """

  mapped: int = 400
  measured: int = 5000
  kind: str = sample_lib.RANDOM
  seed: int = 0
  max_passages: int | None = None
  ranked: int = 0
  dims: Sequence[int] | None = None


def analyse(
    name: str,
    model: Loaded,
    experiment: Experiment,
    split: str,
    options: Options,
    index_dir: pathlib.Path | None = None,
) -> Analysis:
  """Samples a split, embeds the sample with a model, and measures it.

  Args:
    name: of the model.
    model: whose towers.
    experiment: whose task, tokenizer and caches.
    split: of the task.
    options: what is drawn.
    index_dir: the folder of an index of the whole corpus, which is made unless
      it exists; None keeps the embeddings in memory.

  Raises:
    UserError: too little data, vectors that are not finite, or a dim that they
      do not have.
  """
  for dim in options.dims or ():
    truncation.check(dim, model.dim, name)
  ranked = RetrievalSet.of_split(experiment, split)
  size = max(options.mapped, options.measured)
  sample = sample_lib.draw(
      ranked, size, options.kind, options.seed, options.max_passages
  )
  _LOG.info('Passages of %s: %s.', name, f'{len(sample.searched):,}')
  searched = ranked.corpus.subset(sample.searched)
  # Of embeddings, whatever codec was trained with them.
  towers = dataclasses.replace(model, codec=None)
  encoded = of_model.corpus_embeddings(towers, searched, index_dir)
  if codec := getattr(encoded, 'codec', None):
    raise UserError(
        f'--index_dir={index_dir} holds codes of {codec.name}, and what is'
        ' analysed are embeddings. Give an index of --codec=fp32, or none.'
    )
  dims = options.dims
  if dims is None:
    trained_dims = model.provenance.get(TRAINED_DIMS, ())
    dims = dims_lib.default_dims(model.dim, trained_dims)
  vectors = vectors_lib.embed(
      name, model.embedder, model.params, sample, encoded, options.ranked, dims
  )
  _LOG.info('Measuring %s.', name)
  numbers = numbers_lib.numbers(vectors, sample)
  if 'separability' not in numbers:
    _LOG.warning(
        'No separability of %s: most queries, or passages, hang together by'
        ' shared relevant passages or equal texts, and no folds part them.',
        name,
    )
  corpus = ranked.corpus.cache.header
  return Analysis(
      {
          'label': experiment.task.label,
          'split': split,
          'source': ranked.cache.header['source'],
          'corpus': {key: corpus[key] for key in ('split', 'source')},
      },
      model.provenance,
      sample,
      vectors,
      numbers,
      lengths_lib.count_tokens(model.tokenizer, sample, name),
  )
