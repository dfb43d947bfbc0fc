"""The queries of a split, and the vectors of what they are ranked over."""

import dataclasses
import pathlib
from typing import Any

from dualenc_jax.data.corpus import Corpus
from dualenc_jax.errors import UserError
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.index import header as header_lib, of_model
from dualenc_jax.index.source import Source
from dualenc_jax.inference.loaded import Loaded
from dualenc_jax.io import device_memory, finite
from dualenc_jax.io.progress import Progress
from dualenc_jax.run.experiment import Experiment
from dualenc_jax.search.row_memory import empty_rows

# The rest is for the model, the queries and what search needs.
_SHARE_OF_MEMORY = 0.6


def retrieval_set(
    experiment: Experiment, split: str, document_separator: str | None = None
) -> RetrievalSet:
  """The queries of a split of the task, and what they are ranked over.

  Args:
    experiment: whose task, tokenizer and caches.
    split: of the task.
    document_separator: ranks documents by their best passage, see `Documents`.

  Raises:
    UserError: what `RetrievalSet.from_cache` raises.
  """
  task = experiment.task.for_split(split)
  if document_separator is not None:
    task = task.judging_documents()
    experiment = dataclasses.replace(experiment, task=task)
  corpus_split = task.corpus_split(split)
  return RetrievalSet.from_cache(
      experiment.cache(split),
      None if corpus_split is None else experiment.cache(corpus_split),
      task.answer_text,
      task.self_hits,
      document_separator,
  )


def corpus_embeddings(
    model: Loaded, corpus: Corpus, index_dir: pathlib.Path | None = None
) -> Any:
  """Embeds a corpus, to the same bits in memory and on disk.

  Args:
    model: whose passage tower.
    corpus: what to embed.
    index_dir: the folder of an index, which is made unless it exists; None
      keeps the embeddings in memory.

  Returns:
    An array or a store of rows [N, D], in the order of the corpus.

  Raises:
    UserError: they do not fit the memory or are not finite, or the index is of
      something else.
  """
  source = Source(corpus.cache, corpus.rows, 'passage')
  if index_dir is not None:
    return of_model.open_or_encode(model, source, index_dir).embeddings
  size = len(corpus)
  needed, there = 4 * size * model.dim, device_memory.machine_memory()
  if needed > _SHARE_OF_MEMORY * there:
    raise UserError(
        f'The embeddings of {size:,} passages need {needed / 2**30:.1f} GiB,'
        f' and this machine has {there / 2**30:.1f} GiB. Keep them on disk with'
        ' --index_dir.'
    )
  embeddings = empty_rows(size, model.dim)
  with Progress('Encoding', size, 'passages') as progress:
    # By the shards of an index: rounding may depend on what is encoded at once.
    for start in range(0, size, header_lib.SHARD_SIZE):
      part = embeddings[start : start + header_lib.SHARD_SIZE]
      rows = corpus.rows[start : start + len(part)]
      for positions, found in source.embedded(model, rows):
        part[positions] = found
        progress(len(positions))
      finite.check_rows(
          'passage embeddings', part, lambda row: repr(corpus.ids[start + row])
      )
  return embeddings
