"""A query tower and the centroids of a product quantiser, trained together."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import math
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dualenc_jax.compression import Codec, model_codec
from dualenc_jax.compression.model_codec import ASSIGN, GROUP, SCORE
from dualenc_jax.compression.product import Product
from dualenc_jax.compression.quantisers import unpacked
from dualenc_jax.data import Batches, Layout, Packed
from dualenc_jax.errors import UserError
from dualenc_jax.inference.embedder import Embedder
from dualenc_jax.inference.towers import TOWER_SHA256
from dualenc_jax.io import json_file
from dualenc_jax.losses import code_search
from dualenc_jax.losses.code_search import Codes, Hits
from dualenc_jax.losses.lambda_rank import lambda_rank, Ranked
from dualenc_jax.losses.similarity import check_positive
from dualenc_jax.models import DualEncoder, model_params
from dualenc_jax.objectives import collapse, passage_states
from dualenc_jax.objectives.objective import check_whole, Run
from dualenc_jax.objectives.of_towers import (
  check_apart,
  encode_queries,
  encode_side,
  OfTowers,
  passage_tower,
)
from dualenc_jax.objectives.passage_states import Passages

# Rows that a device encodes at once.
_ENCODED_AT_ONCE = 256
# Passages whose embeddings are in memory until they are codes.
_BLOCK = 2**17
_METHOD = 'encode_passage'


@dataclasses.dataclass(frozen=True, eq=False)
class _Targeted(Batches):
  """Batches that say which of all passages are a query's.

  Beside what all have: targets int32 [b, 1 + P], its own first, which stands in
  where there are fewer; and renewed bool [b], True at steps before which the
  search takes over the centroids.
  """

  all_passages: Passages | None = None
  refresh: int = 1

  def __call__(self, step: int, cells: Any = slice(None)) -> dict[str, Any]:
    batch = super().__call__(step, cells)
    ids = batch['passage_ids'][:, None]
    if 'positive_ids' in batch:
      ids = np.concatenate([ids, batch['positive_ids']], axis=1)
    low, high = np.moveaxis(ids.astype(np.uint64), -1, 0)
    numbers = self.all_passages.numbers(low | high << np.uint64(32))
    return {
        **batch,
        'targets': numbers.astype(np.int32),
        'renewed': np.full(len(ids), step % self.refresh == 0),
    }


@dataclasses.dataclass(frozen=True)
class JointPq(OfTowers):
  """JPQ (Zhan et al. 2021): joint learning of a query tower and of centroids.

  Every passage n of the run is a code that never changes, by the frozen passage
  tower and the centroids, `assign`, of a codec that is given; it stands for the
  centroids C, `score`, which start from these. For a query q with the embedding
  R E(q), R the map of the codec, each step searches all codes for the `depth`
  best by C and E as they are now. With these and the labelled passages of q,

    L_q = mean over relevant i, other j found of
          log(1 + exp((s_j - s_i) / temperature)) |w(r_j) - w(r_i)|,

  w(r) = 1 / r up to rank `cut`, and 0 behind. A relevant one that is not found
  has rank depth + 1. E and C are trained. New passages are encoded by `assign`
  and scored by `score`, so that the model keeps both.

  Parameters are the model's, and those of the codec under 'codec'.

  Attributes:
    model: a dual encoder whose query tower has an encoder of its own.
    codec_from: an index that `dualenc encode --codec=opq:96` made by the model
      that training starts from, of these or other passages.
    depth: of the search; the hits that are not relevant are the negatives.
    cut: the last rank that counts.
    temperature: of the scores, which are near cosines: 0.01 to 0.05. At 1 the
      logarithm would be in its linear part.
    refresh: steps from one time that the search takes over C to the next; 1
      searches with what is trained.
    whole_corpus: the corpus of the task is searched, too, where it has one
      beside the passages of its pairs.
    states_dir: a folder in which the codes are kept, for other runs of the same
      passage tower and codec; None encodes at every start.
    micro_batch_size: queries encoded at once; None for all of the batch.
    layout: how texts are put into rows.
  """

  model: DualEncoder
  codec_from: str | None = None
  depth: int = 200
  cut: int = 200
  temperature: float = 0.01
  refresh: int = 1
  whole_corpus: bool = True
  states_dir: str | None = None
  micro_batch_size: int | None = None
  layout: Layout = Packed()
  num_negatives = 0
  sides = ('queries',)
  needs_start = True

  def __post_init__(self):
    self.check_feeding()
    check_apart('JointPq', self.model)
    for name in ('depth', 'cut', 'refresh'):
      macro = f'JPQ_{name.upper()}'
      check_whole(f'JointPq.{name} ({macro})', getattr(self, name), 1)
    check_positive('JointPq.temperature (TEMPERATURE)', self.temperature)

  @functools.cached_property
  def codec(self) -> Codec:
    """What training starts from; raises UserError for what cannot be that."""
    codec = model_codec.start(self.codec_from)
    dim = self.model.projection.features
    if codec.dim != dim:
      raise UserError(
          f'CODEC_FROM is {self.codec_from}, a codec of embeddings of dim'
          f' {codec.dim}, and the model makes them of dim {dim}. Give one that'
          ' was made by the model that training starts from.'
      )
    return codec

  @property
  def frozen(self) -> Sequence[str]:
    return *passage_tower(self.model), 'codec/(?!score).*'

  @property
  def facts(self) -> dict[str, Any]:
    return {**super().facts, GROUP: model_codec.facts(self.codec)}

  def init(self, key: jax.Array) -> Any:
    arrays = model_codec.arrays(self.codec)
    own = {name: jnp.asarray(array) for name, array in arrays.items()}
    return {**super().init(key), GROUP: own}

  def codec_of(self, params: Any) -> Codec:
    """The codec as trained so far, through which the model is to be measured.

    Args:
      params: of the train state.
    """
    return model_codec.of(model_codec.facts(self.codec), params[GROUP])

  def check_batch(self, run: Run) -> None:
    super().check_batch(run)
    quantiser = self.codec.quantiser
    # The stale centroids are kept centroid by centroid.
    if self.refresh > 1:
      devices = run.partitioner.mesh.shape['data']
      if quantiser.score.shape[1] % devices:
        raise UserError(
            f'JPQ_REFRESH is {self.refresh}, and {devices} devices on the data'
            f' axis do not divide the {quantiser.score.shape[1]} centroids of a'
            ' part. Expected JPQ_REFRESH=1, or a power of two of devices.'
        )

  def memory(self, run: Run) -> Any:
    del run
    if self.refresh == 1:
      return ()
    parts, size, width = self.codec.quantiser.score.shape
    return {SCORE: jax.ShapeDtypeStruct((size, parts, width), np.float32)}

  def fill(self, run: Run, params: Any) -> Any:
    self._check_tower(run, params)
    if self.refresh == 1:
      return ()
    score = np.asarray(jax.device_get(params[GROUP][SCORE]))
    found = {SCORE: np.ascontiguousarray(np.swapaxes(score, 0, 1))}
    return passage_states.put(found, score.shape[1], run.partitioner)

  def _check_tower(self, run: Run, params: Any) -> None:
    """Raises UserError where an index says that another tower encoded it."""
    header = pathlib.Path(self.codec_from).expanduser() / 'header.json'
    if not header.exists():
      return
    found = json_file.read(header, provenance=dict)['provenance']
    embedder = self._embedder(run, params)
    digest = embedder.digest(model_params(params), 'passage')
    found = found.get(TOWER_SHA256) or {}
    wrong = [part for part in digest if found.get(part) != digest[part]]
    if wrong:
      raise UserError(
          f'CODEC_FROM is {self.codec_from}, of another passage tower than the'
          f' one that training starts from: its {" and ".join(wrong)} differ'
          f' ({TOWER_SHA256}). Make an index by INITIAL_CHECKPOINT_PATH.'
      )

  def _embedder(self, run: Run, params: Any) -> Embedder:
    return self.embedder(params, run.partitioner, _ENCODED_AT_ONCE)

  def batches(self, run: Run) -> Batches:
    found = super().batches(run)
    return _Targeted(
        **{f.name: getattr(found, f.name) for f in dataclasses.fields(found)},
        all_passages=Passages(
            run.caches, run.corpora if self.whole_corpus else ()
        ),
        refresh=self.refresh,
    )

  def _shapes(self, run: Run) -> dict[str, Any]:
    """The constants, abstract; as few rows as the batch size divides."""
    passages, size = len(run.batches.all_passages), run.batch_size
    rows = math.ceil(passages / size) * size
    width = self.codec.quantiser.width
    return {
        'codes': jax.ShapeDtypeStruct((rows, width), np.uint8),
        'code_valid': jax.ShapeDtypeStruct((rows,), bool),
    }

  def abstract_batch(self, run: Run) -> Any:
    found, size = super().abstract_batch(run), run.batch_size
    others = found['positive_ids'].shape[1] if 'positive_ids' in found else 0
    return {
        **found,
        'targets': jax.ShapeDtypeStruct((size, 1 + others), np.int32),
        'renewed': jax.ShapeDtypeStruct((size,), bool),
        **self._shapes(run),
    }

  def constants(self, run: Run, params: Any) -> Mapping[str, Any]:
    passages, shapes = run.batches.all_passages, self._shapes(run)
    # They never change: as they were at the start, wherever training is.
    codec = self.codec_of(params)
    embedder, own = self._embedder(run, params), model_params(params)

    def make() -> np.ndarray:
      codes = np.empty((len(passages), codec.quantiser.width), np.uint8)
      for first in range(0, len(codes), _BLOCK):
        block = codes[first : first + _BLOCK]
        some = passages.some(np.arange(first, first + len(block)))
        vectors = np.empty((len(block), codec.dim), np.float32)
        some.encode(embedder, own, _METHOD, vectors)
        block[:] = codec.encode(vectors)
      return codes

    def header() -> dict[str, Any]:
      fixed = dataclasses.replace(
          codec, quantiser=Product(*[codec.quantiser.assign] * 2)
      )
      return {
          **passage_states.header(
              passages, embedder, own, _METHOD, codec.quantiser.width
          ),
          'codec_sha256': model_codec.digest(fixed),
      }

    codes = passage_states.kept(self.states_dir, header, make)
    found = {'codes': codes, 'code_valid': np.ones(len(codes), bool)}
    return passage_states.put(found, len(shapes['code_valid']), run.partitioner)

  def step(
      self, params: Any, memory: Any, batch: Any, key: jax.Array | None
  ) -> tuple[jax.Array, dict[str, jax.Array], Any]:
    score = params[GROUP][SCORE]
    searched = score
    if self.refresh > 1:
      now = jax.lax.stop_gradient(jnp.swapaxes(score, 0, 1))
      kept = jnp.where(jnp.any(batch['renewed']), now, memory[SCORE])
      memory, searched = {SCORE: kept}, jnp.swapaxes(kept, 0, 1)
    value, metrics = self._value(params, batch, searched, key)
    return value, metrics, memory

  def __call__(
      self, params: Any, batch: Any, key: jax.Array | None = None
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    score = params[GROUP][SCORE]
    return self._value(params, batch, score, key)

  def _value(
      self,
      params: Any,
      batch: Any,
      searched: jax.Array,
      key: jax.Array | None,
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The value and metrics of a batch, with centroids for the search."""

    def encode_cells(numbers, queries):
      return encode_side(
          self.model, params, 'encode_query', queries, numbers, key
      )

    arrays = params[GROUP]
    query = encode_queries(encode_cells, batch, self.micro_batch_size)
    query = model_codec.of_queries(model_codec.facts(self.codec), arrays, query)
    targets = batch['targets']
    hits = code_search.search(
        Codes(batch['codes'], batch['code_valid']),
        query,
        searched,
        targets,
        self.depth,
    )
    quantiser = Product(arrays[ASSIGN], arrays[SCORE])
    relevant, others = _ranked(quantiser, query, hits, targets, batch)
    losses = lambda_rank(relevant, others, self.cut, self.temperature)
    weights = batch.get('weights')
    if weights is None:
      weights = jnp.ones(len(query), jnp.float32)
    total = jnp.sum(weights)
    loss = jnp.sum(weights * losses) / jnp.where(total == 0.0, 1.0, total)
    own = unpacked(hits.wanted[:, 0], quantiser.bits, quantiser.parts, jnp)
    return loss, {
        'loss': loss,
        **_metrics(relevant, others, self.depth),
        **collapse.watched(query, quantiser.values(own)),
    }

  def describe(self, run: Run) -> Iterator[str]:
    yield from super().describe(run)
    stale = ''
    if self.refresh > 1:
      stale = f', by centroids of up to {self.refresh - 1} steps ago'
    yield (
        f'JPQ: the query tower and the centroids of {self.codec.name} are'
        f' trained, by the {self.depth} best of all passages at each'
        f' step{stale}.'
    )

  def describe_batches(self, run: Run, step: int) -> Iterator[str]:
    yield from super().describe_batches(run, step)
    yield self._takes(run) + '.'

  def _takes(self, run: Run) -> str:
    """A line on the codes; raises UserError where there is less memory."""
    width = self.codec.bytes_per_passage
    return passage_states.check_fits(
        f'The codes of {len(run.batches.all_passages):,} passages, of {width}'
        ' bytes each,',
        self._shapes(run),
        run.partitioner,
        'WHOLE_CORPUS=False for the passages of the training pairs alone',
    )


def _ranked(
    quantiser: Product,
    query: jax.Array,
    hits: Hits,
    targets: jax.Array,
    batch: Any,
) -> tuple[Ranked, Ranked]:
  """Relevant passages and the other hits, scored with gradients.

  Args:
    quantiser: as trained so far.
    query: [B, d].
    hits: k of each query.
    targets: int32 [B, R], rows of its relevant passages; where there are fewer
      the first stands in.
    batch: with the rows that there are.
  """
  depth = hits.rows.shape[1]
  same = targets[:, :, None] == hits.rows[:, None, :]
  places = jnp.arange(1, depth + 1, dtype=jnp.int32)
  found = jnp.any(same, axis=2)
  ranks = jnp.where(found, 1 + jnp.argmax(same, axis=2), depth + 1)
  first = jnp.arange(targets.shape[1]) == 0
  is_other = first[None] | (targets != targets[:, :1])
  is_there = hits.rows < len(batch['code_valid'])
  scores = _scores(
      quantiser, query, jnp.concatenate([hits.wanted, hits.codes], axis=1)
  )
  relevant, others = jnp.split(scores, [targets.shape[1]], axis=1)
  return (
      Ranked(relevant, ranks, is_other),
      Ranked(
          others,
          jnp.broadcast_to(places[None], hits.rows.shape),
          is_there & ~jnp.any(same, axis=1),
      ),
  )


def _scores(
    quantiser: Product, query: jax.Array, codes: jax.Array
) -> jax.Array:
  """Scores [B, n] of codes [B, n, w] of each query [B, d].

  By tables: a product for each centroid, of which each code picks M. What is
  found needs not be decoded, which took as many times more memory as a part has
  dims, here and in the backward pass.
  """
  size, count, width = codes.shape
  parts = quantiser.parts
  numbers = unpacked(codes.reshape(-1, width), quantiser.bits, parts, jnp)
  tables = jnp.einsum(
      'bms,mjs->bmj',
      query.reshape(size, parts, -1),
      quantiser.score,
      precision='highest',
  )
  of_part = jnp.swapaxes(numbers.reshape(size, count, parts), 1, 2)
  picked = jnp.take_along_axis(tables, of_part, axis=2, mode='clip')
  return jnp.sum(picked, axis=1)


def _metrics(
    relevant: Ranked, others: Ranked, depth: int
) -> dict[str, jax.Array]:
  """What is logged of a search.

  Returns:
    found, the share of queries with a relevant passage among the hits; mrr, the
    mean reciprocal rank of the first; margin, the mean of what the best of them
    scores above the best other; negatives, how many a query has.
  """
  best = jnp.min(jnp.where(relevant.valid, relevant.ranks, depth + 1), axis=1)
  found = best <= depth
  scores = [
      jnp.max(jnp.where(part.valid, part.scores, -jnp.inf), axis=1)
      for part in (relevant, others)
  ]
  several = jnp.any(others.valid, axis=1)
  margins = jnp.where(several, scores[0] - scores[1], 0.0)
  return {
      'found': jnp.mean(found.astype(jnp.float32)),
      'mrr': jnp.mean(jnp.where(found, 1.0 / best.astype(jnp.float32), 0.0)),
      'margin': jnp.mean(jax.lax.stop_gradient(margins)),
      'negatives': jnp.mean(
          jnp.sum(others.valid, axis=1).astype(jnp.float32)
      ),
  }
