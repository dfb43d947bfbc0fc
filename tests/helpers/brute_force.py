"""Embeddings without our embedder."""

from collections.abc import Mapping
import pathlib

import jax
import numpy as np

from dualenc_jax.cli import saved_run


def towers(
    model: pathlib.Path, corpus: Mapping[str, str], queries: Mapping[str, str]
) -> tuple[np.ndarray, np.ndarray]:
  """Queries and passages as Flax embeds them, text by text: float64 [n, D].

  Args:
    model: a model_dir of the tiny model.
    corpus: texts by id.
    queries: texts by id.
  """
  trained = saved_run.load(str(model))
  experiment, params = trained.experiment, jax.device_get(trained.params)

  def embed(method, rows):
    apply = jax.jit(
        lambda tokens: experiment.objective.model.apply(
            {'params': params}, tokens, method=method
        )
    )
    return np.concatenate(
        [apply(rows.padded([i], 16)) for i in range(len(rows))]
    ).astype(np.float64)

  tokenizer = experiment.tokenizer
  return (
      embed('encode_query', tokenizer.encode_queries(list(queries.values()))),
      embed('encode_passage', tokenizer.encode_passages(list(corpus.values()))),
  )
