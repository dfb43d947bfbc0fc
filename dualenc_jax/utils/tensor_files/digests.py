"""Digests of tensors, which show that a bit has flipped.

A digest is 'float32[512,64] 0123456789abcdef': dtype, shape and two sums modulo
2^32 over all words of the tensor, each mixed with its index. A word is an
element, its bits as a whole number below 2^32; an element of 64 bits is two,
the lower half first. Both mixtures are one-to-one in the word, so that a change
of a single one is noticed always; any other change is missed with a probability
near 2^-64. It is no proof against who forges one.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
from typing import Any

import numpy as np

from dualenc_jax.utils.tensor_files.tensors import (
  DamageError,
  layer_names,
  Tensor,
)

# Odd multipliers: of the index in each of the two sums; of the rounds of the
# first ("lowbias32", Wellons 2018: https://nullprogram.com/blog/2018/07/31/),
# and that of the second.
INDEX = 0x9E3779B9, 0x85EBCA77
ROUNDS = 0x7FEB352D, 0x846CA68B
SECOND = 0xC2B2AE3D
MASK = 2**32 - 1
# Words that NumPy mixes at once: its buffers stay in a core's cache.
_BLOCK = 1 << 15
_AGAIN = 'Copy the whole folder again, or use another checkpoint.'


def compute_digest(array: np.ndarray) -> str:
  """Returns the digest of an array, as `training.device_digests` has it."""
  sums = [0, 0]
  size = array.dtype.itemsize
  flat = np.ascontiguousarray(array).reshape(-1)
  words = flat.view(f'u{size}' if size < 4 else 'u4')
  first, second = (
      np.arange(min(_BLOCK, words.size), dtype=np.uint32) * np.uint32(by)
      for by in INDEX
  )
  for start in range(0, words.size, _BLOCK):
    w = words[start : start + _BLOCK].astype(np.uint32)
    w += first[: w.size]
    w += np.uint32(start * INDEX[0] & MASK)
    _fold(w, 16, ROUNDS[0])
    _fold(w, 15, ROUNDS[1])
    _fold(w, 16, 1)
    sums[0] += int(w.sum(dtype=np.uint32))
    w ^= second[: w.size] + np.uint32(start * INDEX[1] & MASK)
    w *= np.uint32(SECOND)
    _fold(w, 15, 1)
    sums[1] += int(w.sum(dtype=np.uint32))
  return format_digest(array.dtype, array.shape, [s & MASK for s in sums])


def parse_headers(digests: Mapping[str, str]) -> dict[str, str]:
  """The dtypes and shapes that digests begin with, by name."""
  return {name: text.rpartition(' ')[0] for name, text in digests.items()}


def layer_headers(
    name: str, dtype: Any, shape: Sequence[int]
) -> dict[str, str]:
  """The dtype and shape of each layer of an array, as of `parse_headers`."""
  layers = layer_names(name, tuple(shape))
  return {layer: _header(dtype, each) for layer, each in layers.items()}


def differences(
    saved: Mapping[str, str], loaded: Mapping[str, str]
) -> Iterator[str]:
  """Names whose values differ, or that one of the two lacks, in order."""
  for name in sorted(saved.keys() | loaded.keys()):
    if saved.get(name) != loaded.get(name):
      yield name


def verify_on_read(
    tensors: Mapping[str, Tensor], digests: Mapping[str, str], where: Any
) -> dict[str, Tensor]:
  """Tensors, one a layer, that are compared with their digests when read.

  Raises:
    DamageError: a tensor is missing, or has no digest.
  """
  if odd := sorted(tensors.keys() ^ digests.keys()):
    lack = 'was saved and is missing' if odd[0] in digests else 'was not saved'
    raise DamageError(f'{where}: {odd[0]} {lack}. {_AGAIN}')
  return {
      name: dataclasses.replace(
          tensor, load=functools.partial(_load, tensor, digests[name]),
          load_at=None,
      )
      for name, tensor in tensors.items()
  }


def _load(tensor: Tensor, digest: str) -> np.ndarray:
  array = tensor.load()
  if (actual := compute_digest(array)) != digest:
    raise DamageError(
        f'{tensor.where} is not what was saved: its digest is {actual}, that'
        f' of what was saved {digest}. {_AGAIN}'
    )
  return array


def format_digest(dtype: Any, shape: Sequence[int], sums: Sequence[int]) -> str:
  """A digest of its parts; the sums are below 2^32."""
  return f'{_header(dtype, shape)} {sums[0]:08x}{sums[1]:08x}'


def _header(dtype: Any, shape: Sequence[int]) -> str:
  return f'{np.dtype(dtype).name}[{",".join(map(str, shape))}]'


def _fold(words: np.ndarray, shift: int, factor: int) -> None:
  """One round, in place: one-to-one, whatever the factor, if it is odd."""
  words ^= words >> np.uint32(shift)
  if factor != 1:
    words *= np.uint32(factor)
