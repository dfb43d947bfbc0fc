"""Towers over texts: batches of few shapes, and loaded models.

`batches` is the one loop over many texts: it sorts them by length, cuts them
into chunks, pads these and sends them to the devices a little ahead of what is
fetched. The program may return any array with a row for each text. Shape and
content of a chunk depend on the texts alone, and a device computes whole
chunks, so a result is the same to the last bit on any number of devices.
"""

import abc
import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

import numpy as np

from dualenc_jax.data.text.ragged import Ragged
from dualenc_jax.data.text.tokenizer import Tokenizer
from dualenc_jax.retrieval.compression import Codec

# Name of the digests of a tower's parts in provenance, see `tower_digest`.
TOWER_SHA256 = 'tower_sha256'
# Steps on the devices while the host handles an earlier one.
AHEAD = 2


@dataclasses.dataclass(frozen=True)
class Shapes:
  """Shapes of chunks.

  Attributes:
    max_tokens: most tokens of a chunk, padding included; it has more than half
      of them unless the batch size is smaller.
    lengths: the lengths of rows, ascending, if programs exist for these alone;
      or, for programs that compile when first needed, their number for each
      doubling. No two are then closer than 8, and small sets have few.
  """

  max_tokens: int
  lengths: int | Sequence[int]

  @property
  def least_chunks(self) -> int:
    """Least number of chunks of one length, while texts are left."""
    return 8 if isinstance(self.lengths, int) else 1

  def padded_length(self, longest: int) -> int:
    """Length of the rows that hold a text of `longest` tokens."""
    if not isinstance(self.lengths, int):
      return next(length for length in self.lengths if length >= longest)
    step = max((1 << (longest - 1).bit_length()) // (2 * self.lengths), 8)
    return max(-(-longest // step), 1) * step


# On a CPU the activations of small chunks stay in the cache, padding is
# expensive, and a program compiles in about a second.
CPU = Shapes(max_tokens=2048, lengths=8)
# An accelerator needs products large enough to fill it, calls long enough to
# hide the host behind them, and few programs, which take longer to compile.
ACCELERATOR = Shapes(max_tokens=32768, lengths=4)


class Chunk(NamedTuple):
  """Texts `start` to `stop`, in descending order of length, in one program.

  Attributes:
    start, stop: places of the first text and after the last.
    rows: number of rows; those without a text are padding.
    length: tokens of each row.
  """

  start: int
  stop: int
  rows: int
  length: int


def cut(
    lengths: np.ndarray, batch_size: int, shapes: Shapes
) -> Iterator[Chunk]:
  """Cuts texts, longest first, into chunks of at most `batch_size` rows.

  A text longer than `max_tokens` is a chunk.
  """
  start, count = 0, len(lengths)
  while start < count:
    length = shapes.padded_length(int(lengths[start]))
    rows = max(min(batch_size, shapes.max_tokens // length), 1)
    rows = 1 << (rows.bit_length() - 1)
    # One query alone must not cost a whole chunk.
    while rows >= 2 * count:
      rows //= 2
    chunks = 0
    while start < count and (
        chunks < shapes.least_chunks
        or shapes.padded_length(int(lengths[start])) == length
    ):
      yield Chunk(start, min(start + rows, count), rows, length)
      start += rows
      chunks += 1


def deal(chunks: Iterable[Chunk], devices: int) -> Iterator[list[Chunk]]:
  """Groups consecutive chunks of one shape: at most one for each device."""
  for _, alike in itertools.groupby(chunks, lambda c: (c.rows, c.length)):
    while step := list(itertools.islice(alike, devices)):
      yield step


def batches(
    program: Callable[[np.ndarray], Any],
    tokens: Ragged,
    batch_size: int,
    shapes: Shapes,
    rows: np.ndarray | None = None,
    devices: int = 1,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Runs a program step by step, the longest rows first.

  The devices compute the next steps while one is yielded; only these are in
  memory.

  Args:
    program: int32 [devices, R, L] tokens, padded with 0, a chunk for each
      device -> an array [devices, R, ...], which need not be computed yet.
    tokens: of all texts.
    batch_size: most rows of a chunk, rounded down to a power of two.
    shapes: shapes of chunks.
    rows: which texts; None for all.
    devices: number of chunks that are computed side by side.

  Yields:
    (int64 [n] positions in `rows`, [n, ...] their results).
  """
  if rows is None:
    rows = np.arange(len(tokens))
  lengths = tokens.lengths[rows]
  order = np.argsort(-lengths, kind='stable')
  waiting: collections.deque[tuple[np.ndarray, Any]] = collections.deque()
  for step in deal(cut(lengths[order], batch_size, shapes), devices):
    positions = order[step[0].start : step[-1].stop]
    rows_each, length = step[0].rows, step[0].length
    # A device without a chunk gets padding.
    host = np.zeros((devices, rows_each, length), np.int32)
    host.reshape(-1, length)[: len(positions)] = tokens.padded(
        rows[positions], length
    )
    waiting.append((positions, program(host)))
    if len(waiting) > AHEAD:
      yield _fetch(*waiting.popleft())
  while waiting:
    yield _fetch(*waiting.popleft())


def params_of_tower(names: Iterable[str], tower: str) -> list[str]:
  """The parameters of a dual encoder that a tower uses, of these names."""
  own = [name for name in names if name.startswith('passage_')]
  shared = [name for name in names if not name.startswith('passage_')]
  if tower == 'query':
    return shared
  parts = {name.removeprefix('passage_').split('/')[0] for name in own}
  return own + [name for name in shared if name.split('/')[0] not in parts]


def scatter(
    out: np.ndarray, found: Iterable[tuple[np.ndarray, np.ndarray]]
) -> np.ndarray:
  """Fills an array, a row a text, with the results of `batches`."""
  for positions, results in found:
    out[positions] = results
  return out


def _fetch(
    positions: np.ndarray, results: Any
) -> tuple[np.ndarray, np.ndarray]:
  found = np.asarray(results)
  return positions, found.reshape(-1, *found.shape[2:])[: len(positions)]


class Towers(abc.ABC):
  """Two towers.

  Attributes:
    normalised: whether embeddings have length one.
  """

  normalised = True

  @property
  @abc.abstractmethod
  def dim(self) -> int:
    """D, of the embeddings."""

  @abc.abstractmethod
  def batches(
      self,
      method: str,
      params: Any,
      tokens: Ragged,
      rows: np.ndarray | None = None,
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Encodes rows of tokens by 'encode_query' or 'encode_passage'.

    Yields:
      (int64 [n] positions in `rows`, or among all, float32 [n, D] embeddings).
    """

  @abc.abstractmethod
  def digest(self, params: Any, tower: str) -> Mapping[str, str]:
    """`tower_digest.digest` of 'query' or 'passage'."""

  def queries(
      self, params: Any, tokens: Ragged, rows: np.ndarray | None = None
  ) -> np.ndarray:
    """Embeddings of tokenised queries, float32 [len(rows), D]."""
    return self._collect('encode_query', params, tokens, rows)

  def passages(
      self, params: Any, tokens: Ragged, rows: np.ndarray | None = None
  ) -> np.ndarray:
    """Embeddings of tokenised passages, float32 [len(rows), D]."""
    return self._collect('encode_passage', params, tokens, rows)

  def _collect(self, method, params, tokens, rows) -> np.ndarray:
    count = len(tokens) if rows is None else len(rows)
    return scatter(
        np.empty((count, self.dim), np.float32),
        self.batches(method, params, tokens, rows),
    )


@dataclasses.dataclass(frozen=True)
class PassageTower:
  """The passage tower that a query tower belongs to, in another folder.

  Attributes:
    length: most tokens of a text, EOS included.
    prefix: of every text.
    sha256: `tower_digest.digest` of it.
  """

  length: int
  prefix: str
  sha256: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class LoadedModel:
  """Two towers with their parameters and tokenizer.

  Attributes:
    params: parameters of `embedder` on the devices.
    tokenizer: vocabulary, lengths and prefixes.
    embedder: the compiled towers.
    provenance: JSON that determines this model's numbers and vectors.
    codec: trained with the towers; an index has its codes of passages. None
      keeps their embeddings.
  """

  params: Any
  tokenizer: Tokenizer
  embedder: Towers
  provenance: Mapping[str, Any]
  codec: Codec | None = dataclasses.field(default=None, kw_only=True)

  @property
  def dim(self) -> int:
    """D, of the embeddings."""
    return self.embedder.dim

  def tower_digest(self, tower: str) -> Mapping[str, str]:
    """`tower_digest.digest` of 'query' or 'passage'; read and computed once."""
    if tower not in self._digests:
      self._digests[tower] = self.embedder.digest(self.params, tower)
    return self._digests[tower]

  @functools.cached_property
  def _digests(self) -> dict[str, Mapping[str, str]]:
    return {}

  def queries(self, tokens: Ragged) -> np.ndarray:
    """Embeds tokenised queries: float32 [len(tokens), D]."""
    return self.embedder.queries(self.params, tokens)

  def passages(self, tokens: Ragged) -> np.ndarray:
    """Embeds tokenised passages: float32 [len(tokens), D]."""
    return self.embedder.passages(self.params, tokens)
