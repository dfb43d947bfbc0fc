"""A codec that an index has, for other passages: there is nothing to train."""

import dataclasses
import pathlib
from typing import Any, ClassVar

import numpy as np

from dualenc_jax.compression import codec_file
from dualenc_jax.compression.codec import Codec
from dualenc_jax.compression.product import Product
from dualenc_jax.errors import UserError


@dataclasses.dataclass(frozen=True, eq=False)
class Saved:
  """What `specs.Spec` is, of a codec that is trained.

  Attributes:
    codec: as it is.
  """

  codec: Codec
  floats: ClassVar[None] = None
  needs_queries: ClassVar[bool] = False

  @property
  def is_product(self) -> bool:
    """As `Spec.is_product`."""
    return isinstance(self.codec.quantiser, Product)

  @property
  def name(self) -> str:
    """Of the codec."""
    return self.codec.name

  @property
  def rescored(self) -> int | None:
    """Of the codec."""
    return self.codec.rescored

  def check(self, dim: int, count: int | None = None) -> None:
    """As `Spec.check`; there is nothing to train."""
    del count
    if dim != self.codec.dim:
      raise UserError(
          f'The codec {self.name} is of vectors of dim {self.codec.dim}, and'
          f' these have {dim}.'
      )

  def shape(self, dim: int) -> tuple[str, int]:
    """As `Spec.shape`."""
    del dim
    return self.codec.code_dtype.name, self.codec.quantiser.width

  def fit(
      self, vectors: Any, queries: np.ndarray | None = None, seed: int = 0
  ) -> Codec:
    """The codec; vectors of another dim are told when they are encoded."""
    del vectors, queries, seed
    return self.codec


def find(folder: str) -> Saved | None:
  """The codec in a folder, such as an index; None where there is none.

  Raises:
    UserError: it is damaged.
  """
  path = pathlib.Path(folder).expanduser() / codec_file.FILE
  return Saved(codec_file.read(path)[0]) if path.is_file() else None
