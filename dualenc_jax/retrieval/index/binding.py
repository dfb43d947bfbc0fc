"""The binding of an index to the tower, and codec, of its vectors.

It needs no Flax, as whoever opens an artifact may have none.
"""

from collections.abc import Mapping
import logging
import os
from typing import Any

from dualenc_jax.retrieval.compression import Codec, model_codec
from dualenc_jax.retrieval.encoding.towers import Loaded, TOWER_SHA256
from dualenc_jax.retrieval.index.header import AGAIN
from dualenc_jax.retrieval.index.index import Index
from dualenc_jax.utils.errors import UserError

# Of a codec that was trained with its model, in the provenance.
CODEC_SHA256 = 'codec_sha256'
_LOG = logging.getLogger(__name__)


def open_index(
    model: Loaded,
    folder: str | os.PathLike[str],
    more: Mapping[str, Any] | None = None,
) -> Index:
  """Opens an index of a model's passages, which the model is to search.

  Codes that were trained with another model's queries are opened with a
  warning.

  Args:
    model: the model, whose passage tower, and codec if any, made the index.
    folder: the index.
    more: further fields that its header must have.

  Raises:
    UserError: as `Index.open`; the index belongs to another passage tower, or
      to the model's own codec at another step or in another model.
  """
  index = Index.open(folder, {**expected(model, 'passage'), **(more or {})})
  if model.codec is None:
    if CODEC_SHA256 in index.header.provenance:
      _LOG.warning(
          '%s: its codes, by %s, were trained for the queries of the model that'
          ' made it. This model has no codec, so its queries find fewer of the'
          ' right passages. Search with that model, or encode the passages with'
          ' this one.',
          index.folder,
          index.header.codec,
      )
  elif index.header.codec == model.codec.name:
    if wrong := index.header.wrong(codec_of(model.codec)):
      raise UserError(
          f'{index.folder}: its codec {model.codec.name} belongs to another'
          f' model or checkpoint: {wrong[0]}. {AGAIN}'
      )
  return index


def codec_of(codec: Codec) -> dict[str, Any]:
  """The provenance of an index that belongs to a model's own codec."""
  return {CODEC_SHA256: model_codec.digest(codec)}


def expected(model: Loaded, tower: str) -> dict[str, Any]:
  """Fields of the header of every index of a tower's embeddings.

  They are the same for all models with this tower, whatever their other one: a
  light query tower searches the index of the model it was aligned to.
  """
  return {'tower': tower, 'dim': model.dim, **encoded_by(model, tower)}


def encoded_by(model: Loaded, tower: str) -> dict[str, Any]:
  """Those of `expected` that stand in the provenance of an index."""
  tokenizer = model.tokenizer
  names = f'{tower}_length', f'{tower}_prefix'
  return {
      TOWER_SHA256: dict(model.tower_digest(tower)),
      'vocabulary': tokenizer.vocabulary.sha256,
      **{name: getattr(tokenizer, name) for name in names},
  }
