"""Latency of one query at serving time, for models side by side.

A call has one query and ends when its embedding is on the host. Models take
turns call by call, in a new order each round, so that what else the machine
does falls on all of them alike.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import time
from typing import Any

import jax
import numpy as np

from dualenc_jax.data.text.ragged import Ragged
from dualenc_jax.models.dual_encoder import count_flops
from dualenc_jax.parallel.partitioning import path_string
from dualenc_jax.retrieval.encoding.embedder import Embedder
from dualenc_jax.retrieval.encoding.towers import LoadedModel, params_of_tower

# Calls before the first that is timed; one for each number of tokens at least,
# as that may be a program to compile.
WARM_UP = 20


@dataclasses.dataclass(frozen=True)
class Times:
  """Calls of one model, in milliseconds.

  Attributes:
    p50, p95: percentiles.
    mean: over all calls.
    speedup: median of the first model over this one's.
  """

  p50: float
  p95: float
  mean: float
  speedup: float


@dataclasses.dataclass(frozen=True)
class Latency:
  """The cost of queries for one model.

  Attributes:
    model: its name.
    layers: of the query tower; None for an exported program.
    parameters: of the query tower: embedding table, encoder and projection.
    megabytes: 10^6 bytes of these in float32.
    gflop: mean `cost.flops` of a query / 10^9; None for an exported program.
    dtype: of the activations, or None.
    tokens_mean, tokens_p95: tokens of a query, prefix and EOS included, cut to
      the tower's length, not padded.
    warm_up: untimed calls, with tokens and with text each.
    tower: from tokens to the embedding.
    with_tokenizer: from the text to the embedding.
  """

  model: str
  layers: int | None
  parameters: int
  megabytes: float
  gflop: float | None
  dtype: str | None
  tokens_mean: float
  tokens_p95: float
  warm_up: int
  tower: Times
  with_tokenizer: Times


def measure(
    models: Mapping[str, LoadedModel],
    texts: Mapping[str, Sequence[str]],
    count: int = 200,
    seed: int = 0,
) -> list[Latency]:
  """Times the query towers of models, the first of which is the baseline.

  Args:
    models: by name.
    texts: as many queries of each model, without its prefix, taken in turn.
    count: timed calls of each model, with tokens and with text each.
    seed: of the order of the calls.
  """
  tokens = {
      name: model.tokenizer.encode_queries(texts[name])
      for name, model in models.items()
  }
  calls: dict[tuple[str, str], Callable[[int], np.ndarray]] = {}
  warm_up = {}
  for name, model in models.items():
    calls[name, 'tower'] = functools.partial(
        _encode_tokens, model, tokens[name]
    )
    calls[name, 'with_tokenizer'] = functools.partial(
        _encode_text, model, texts[name]
    )
    _, new = np.unique(tokens[name].lengths, return_index=True)
    warm_up[name] = max(WARM_UP, len(new))
    for i in [*new, *range(WARM_UP - len(new))]:
      calls[name, 'tower'](i)
      calls[name, 'with_tokenizer'](i)
  times = _time_in_turns(calls, count, seed)
  first = next(iter(models))

  def summary(name: str, kind: str) -> Times:
    own = times[name, kind]
    speedup = np.median(times[first, kind]) / np.median(own)
    numbers = (*np.percentile(own, [50, 95]), own.mean(), speedup)
    return Times(*map(float, numbers))

  return [
      Latency(
          name,
          **_describe(model, tokens[name].lengths),
          tokens_mean=float(tokens[name].lengths.mean()),
          tokens_p95=float(np.percentile(tokens[name].lengths, 95)),
          warm_up=warm_up[name],
          tower=summary(name, 'tower'),
          with_tokenizer=summary(name, 'with_tokenizer'),
      )
      for name, model in models.items()
  ]


def _encode_tokens(model: LoadedModel, tokens: Ragged, i: int) -> np.ndarray:
  row = tokens.row(i % len(tokens))
  return model.queries(Ragged(row, np.array([0, len(row)])))


def _encode_text(
    model: LoadedModel, texts: Sequence[str], i: int
) -> np.ndarray:
  text = texts[i % len(texts)]
  return model.queries(model.tokenizer.encode_queries([text]))


def _time_in_turns(
    calls: Mapping[tuple[str, str], Callable[[int], np.ndarray]],
    count: int,
    seed: int,
) -> dict[tuple[str, str], np.ndarray]:
  """Milliseconds of the calls of each kind, float64 [count]."""
  rng = np.random.default_rng(seed)
  kinds = list(calls)
  times = {kind: np.empty(count) for kind in kinds}
  for i in range(count):
    for place in rng.permutation(len(kinds)):
      call = calls[kinds[place]]
      start = time.perf_counter()
      call(i)
      times[kinds[place]][i] = 1e3 * (time.perf_counter() - start)
  return times


def _describe(model: LoadedModel, lengths: np.ndarray) -> dict[str, Any]:
  """Size of the query tower and operations of queries of these lengths."""
  sizes = {
      path_string(path): leaf.size
      for path, leaf in jax.tree_util.tree_leaves_with_path(model.params)
  }
  count = sum(sizes[name] for name in params_of_tower(sizes, 'query'))
  facts = {'parameters': count, 'megabytes': 4 * count / 1e6}
  if not isinstance(model.embedder, Embedder):
    dtype = model.provenance.get('dtype')
    return {'layers': None, 'gflop': None, 'dtype': dtype, **facts}
  towers = model.embedder.model
  flops = [count_flops(towers, 'query', int(length)) for length in lengths]
  return {
      'layers': towers.encoder.num_layers,
      'gflop': float(np.mean(flops)) / 1e9,
      'dtype': towers.encoder.dtype,
      **facts,
  }
