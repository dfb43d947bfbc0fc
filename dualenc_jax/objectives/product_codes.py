"""All passages of a run as fixed codes, whose centroids are trained.

The passage tower is frozen, and so is the part of a codec that assigns codes.
`CodeObjective` is the base class of what trains on a search of them.
"""

import dataclasses
import functools
import pathlib
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from dualenc_jax.data import Layout, Packed
from dualenc_jax.losses import code_search
from dualenc_jax.losses.code_search import Codes, Hits, Ranked
from dualenc_jax.models import DualEncoder, model_params
from dualenc_jax.objectives import encoding
from dualenc_jax.objectives.frozen_passages import (
  FrozenPassages,
  passage_tower,
  Passages,
)
from dualenc_jax.objectives.objective import Key, Run
from dualenc_jax.objectives.pairs import PairObjective
from dualenc_jax.retrieval.compression import Codec, model_codec
from dualenc_jax.retrieval.compression.model_codec import ASSIGN, GROUP, SCORE
from dualenc_jax.retrieval.compression.product import Product
from dualenc_jax.retrieval.compression.quantisers import unpack
from dualenc_jax.retrieval.encoding.embedder import Embedder
from dualenc_jax.retrieval.encoding.towers import TOWER_SHA256
from dualenc_jax.utils import json_file
from dualenc_jax.utils.errors import check_positive, check_whole, UserError


@dataclasses.dataclass(frozen=True)
class ProductCodes(FrozenPassages):
  """Codes of all passages, and centroids C that are trained to score them.

  A code is given by the centroids `assign` of a codec and stands for the
  centroids C, `score`, which start as `assign`. A query is R E(q), R the map of
  the codec. New passages are encoded by `assign` and scored by `score`, so the
  model keeps both, as parameters under 'codec'.

  Attributes:
    codec_from: an index that `dualenc encode --codec=opq:96` made, with the
      initial model, of these or other passages.
  """

  codec_from: str | None = None
  unit: ClassVar[str] = 'code'
  dtype: ClassVar[Any] = np.uint8

  @functools.cached_property
  def codec(self) -> Codec:
    """The initial codec; raises UserError for one that cannot be trained."""
    codec = model_codec.load_initial(self.codec_from)
    dim = self.model.projection.features
    if codec.dim != dim:
      raise UserError(
          f'CODEC_FROM is {self.codec_from}, a codec of embeddings of dim'
          f" {codec.dim}, but the model's have dim {dim}. Give a codec of the"
          ' model that training starts from.'
      )
    return codec

  @property
  def facts(self) -> dict[str, Any]:
    return {GROUP: model_codec.facts(self.codec)}

  @property
  def frozen(self) -> tuple[str, ...]:
    return *passage_tower(self.model), 'codec/(?!score).*'

  def init(self) -> dict[str, Any]:
    arrays = model_codec.arrays(self.codec)
    return {GROUP: {name: jnp.asarray(x) for name, x in arrays.items()}}

  def codec_of(self, params: Any) -> Codec:
    return model_codec.from_arrays(model_codec.facts(self.codec), params[GROUP])

  @property
  def width(self) -> int:
    return self.codec.quantiser.width

  def encode(
      self, passages: Passages, embedder: Embedder, params: Any
  ) -> np.ndarray:
    # Codes never change: `assign` is as it was at the start of training.
    codec = self.codec_of(params)
    return codec.encode(
        passages.encode(
            embedder, model_params(params), self.method, codec.dim
        )
    )

  def encoding_facts(self, params: Any) -> dict[str, Any]:
    codec = self.codec_of(params)
    quantiser = Product(*[codec.quantiser.assign] * 2)
    fixed = dataclasses.replace(codec, quantiser=quantiser)
    return {'codec_sha256': model_codec.digest(fixed)}

  def arrays(self, run: Run, params: Any) -> dict[str, Any]:
    self._check_tower(run, params)
    return super().arrays(run, params)

  def _check_tower(self, run: Run, params: Any) -> None:
    """Raises UserError if another tower encoded the index."""
    header = pathlib.Path(self.codec_from or '').expanduser() / 'header.json'
    if not header.exists():
      return
    shape = {f'{TOWER_SHA256}?': {str: str}}
    provenance = json_file.read(header, provenance=shape)['provenance']
    embedder = Embedder.for_params(self.model, params, run.partitioner)
    digest = embedder.digest(model_params(params), 'passage')
    of_index = provenance.get(TOWER_SHA256) or {}
    wrong = [part for part in digest if of_index.get(part) != digest[part]]
    if wrong:
      raise UserError(
          f'CODEC_FROM is {self.codec_from}, of another passage tower than the'
          f" one that training starts from: its {' and '.join(wrong)} differ"
          f' ({TOWER_SHA256}). Encode an index with the model of'
          ' INITIAL_CHECKPOINT_PATH.'
      )

  def map_queries(self, params: Any, query: jax.Array) -> jax.Array:
    """Maps embeddings of queries by R, float32 [B, d]."""
    facts = model_codec.facts(self.codec)
    return model_codec.map_queries(facts, params[GROUP], query)

  def search(
      self, params: Any, batch: Any, query: jax.Array, depth: int
  ) -> Hits:
    """Finds the `depth` best of all passages, exactly, by the centroids C."""
    codes = Codes(batch['codes'], batch['code_valid'])
    score = params[GROUP][SCORE]
    return code_search.search(codes, query, score, batch['targets'], depth)

  def rank(
      self, params: Any, batch: Any, query: jax.Array, hits: Hits
  ) -> tuple[Ranked, Ranked, dict[str, jax.Array]]:
    """Scores relevant passages and other hits, with gradients.

    Returns both and metrics.
    """
    arrays = params[GROUP]
    quantiser = Product(arrays[ASSIGN], arrays[SCORE])
    total = len(batch['code_valid'])
    relevant, others = code_search.rank(
        quantiser, query, hits, batch['targets'], total
    )
    relevant_codes = unpack(
        hits.wanted[:, 0], quantiser.bits, quantiser.parts, jnp
    )
    return relevant, others, {
        **code_search.metrics(relevant, others, hits.rows.shape[1]),
        **encoding.effective_ranks(query, quantiser.values(relevant_codes)),
    }


@dataclasses.dataclass(frozen=True)
class CodeObjective(PairObjective):
  """The base class of training by a search of the codes of all passages.

  Attributes:
    codec_from: see `ProductCodes`; also for `whole_corpus` and `states_dir`.
    depth: hits of a query's search.
    temperature: divides the scores, which are near cosines.
  """

  model: DualEncoder
  codec_from: str | None = None
  depth: int = 1
  temperature: float = 1.0
  whole_corpus: bool = True
  states_dir: str | None = None
  micro_batch_size: int | None = None
  layout: Layout = Packed()
  num_negatives = 0
  sides = ('queries',)
  needs_start = True

  def __post_init__(self):
    self.check_options()
    name = type(self).__name__
    check_whole(f'{name}.depth (JPQ_DEPTH)', self.depth, 1)
    check_positive(f'{name}.temperature (TEMPERATURE)', self.temperature)

  @functools.cached_property
  def frozen_passages(self) -> ProductCodes:
    return ProductCodes(
        self.model, self.whole_corpus, self.states_dir,
        codec_from=self.codec_from,
    )

  def queries(self, params: Any, batch: Any, key: Key) -> jax.Array:
    """Encodes the batch's queries and maps them by the codec, [B, d]."""
    query = encoding.embed_queries(
        self.model, params, batch, key, self.micro_batch_size
    )
    return self.frozen_passages.map_queries(params, query)
