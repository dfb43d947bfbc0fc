"""The base class of objectives over passages that are fixed codes.

The passage tower is frozen, and so is the part of a codec that assigns codes;
the query tower and the centroids that codes stand for are trained.
"""

import dataclasses
import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dualenc_jax.losses import code_search
from dualenc_jax.losses.code_search import Codes, Hits, Ranked
from dualenc_jax.models import model_params
from dualenc_jax.objectives import collapse
from dualenc_jax.objectives.objective import Key, Run
from dualenc_jax.objectives.over_passages import OverPassages, passage_tower
from dualenc_jax.objectives.passage_states import Passages
from dualenc_jax.retrieval.compression import Codec, model_codec
from dualenc_jax.retrieval.compression.model_codec import ASSIGN, GROUP, SCORE
from dualenc_jax.retrieval.compression.product import Product
from dualenc_jax.retrieval.compression.quantisers import unpacked
from dualenc_jax.retrieval.encoding.embedder import Embedder
from dualenc_jax.retrieval.encoding.towers import TOWER_SHA256
from dualenc_jax.utils import json_file
from dualenc_jax.utils.errors import check_positive, check_whole, UserError


class OverCodes(OverPassages):
  """Trains a query tower E and centroids C for codes of all passages.

  Every passage of the run has a fixed code, by the frozen passage tower and the
  centroids `assign` of a given codec. The code stands for the centroids C,
  `score`, which start as `assign`. A query is R E(q), R the map of the codec.
  New passages are encoded by `assign` and scored by `score`, so the model keeps
  both.

  Parameters are the model's, and those of the codec under 'codec'.

  Attributes:
    codec_from: an index that `dualenc encode --codec=opq:96` made, with the
      initial model, of these or other passages.
    depth: hits of a query's search.
    temperature: divides the scores, which are near cosines: 0.01 to 0.05.
    states_dir: a folder that keeps the codes for other runs of the same passage
      tower and codec; None encodes at every start.
  """

  unit = 'code'
  dtype = np.uint8
  codec_from: str | None
  depth: int
  temperature: float

  def __post_init__(self) -> None:
    super().__post_init__()
    name = type(self).__name__
    check_whole(f'{name}.depth (JPQ_DEPTH)', self.depth, 1)
    check_positive(f'{name}.temperature (TEMPERATURE)', self.temperature)

  @functools.cached_property
  def codec(self) -> Codec:
    """The initial codec; raises UserError for one that cannot be trained."""
    codec = model_codec.start(self.codec_from)
    dim = self.model.projection.features
    if codec.dim != dim:
      raise UserError(
          f'CODEC_FROM is {self.codec_from}, a codec of embeddings of dim'
          f" {codec.dim}, but the model's have dim {dim}. Give a codec of the"
          ' model that training starts from.'
      )
    return codec

  @property
  def frozen(self) -> tuple[str, ...]:
    return *passage_tower(self.model), 'codec/(?!score).*'

  @property
  def facts(self) -> dict[str, Any]:
    return {**super().facts, GROUP: model_codec.facts(self.codec)}

  def init(self, key: jax.Array) -> Any:
    arrays = model_codec.arrays(self.codec)
    own = {name: jnp.asarray(array) for name, array in arrays.items()}
    return {**super().init(key), GROUP: own}

  def codec_of(self, params: Any) -> Codec:
    """The codec as trained so far, with which the model is evaluated."""
    return model_codec.from_arrays(model_codec.facts(self.codec), params[GROUP])

  def check_tower(self, run: Run, params: Any) -> None:
    """Raises UserError if another tower encoded the index."""
    header = pathlib.Path(self.codec_from or '').expanduser() / 'header.json'
    if not header.exists():
      return
    shape = {f'{TOWER_SHA256}?': {str: str}}
    found = json_file.read(header, provenance=shape)['provenance']
    embedder = self.embedder(params, run.partitioner)
    digest = embedder.digest(model_params(params), 'passage')
    found = found.get(TOWER_SHA256) or {}
    wrong = [part for part in digest if found.get(part) != digest[part]]
    if wrong:
      raise UserError(
          f'CODEC_FROM is {self.codec_from}, of another passage tower than the'
          f" one that training starts from: its {' and '.join(wrong)} differ"
          f' ({TOWER_SHA256}). Encode an index with the model of'
          ' INITIAL_CHECKPOINT_PATH.'
      )

  @property
  def width(self) -> int:
    return self.codec.quantiser.width

  def header(self, params: Any) -> dict[str, Any]:
    codec = self.codec_of(params)
    quantiser = Product(*[codec.quantiser.assign] * 2)
    fixed = dataclasses.replace(codec, quantiser=quantiser)
    return {'codec_sha256': model_codec.digest(fixed)}

  def kept_of(
      self, passages: Passages, embedder: Embedder, params: Any
  ) -> np.ndarray:
    # They never change: as they were at the start, wherever training is.
    own, codec = model_params(params), self.codec_of(params)
    return codec.encode(passages.encode(embedder, own, self.method, codec.dim))

  def queries(self, params: Any, batch: Any, key: Key) -> jax.Array:
    """The batch's queries under the map of the codec, float32 [B, d]."""
    query = self.encoded_queries(params, batch, key)
    facts = model_codec.facts(self.codec)
    return model_codec.map_queries(facts, params[GROUP], query)

  def search(self, batch: Any, query: jax.Array, score: jax.Array) -> Hits:
    """The best of all passages, exactly, by the centroids `score`."""
    codes = Codes(batch['codes'], batch['code_valid'])
    return code_search.search(codes, query, score, batch['targets'], self.depth)

  def rank(
      self, params: Any, batch: Any, query: jax.Array, hits: Hits
  ) -> tuple[Ranked, Ranked, dict[str, jax.Array]]:
    """Relevant passages and other hits, scored with gradients; metrics."""
    arrays = params[GROUP]
    quantiser = Product(arrays[ASSIGN], arrays[SCORE])
    total = len(batch['code_valid'])
    relevant, others = code_search.ranked(
        quantiser, query, hits, batch['targets'], total
    )
    own = unpacked(hits.wanted[:, 0], quantiser.bits, quantiser.parts, jnp)
    return relevant, others, {
        **code_search.metrics(relevant, others, self.depth),
        **collapse.watched(query, quantiser.values(own)),
    }
