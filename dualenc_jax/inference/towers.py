"""Texts through towers, in batches of few shapes; a model ready to encode.

`batches` is the one loop over many texts: they are sorted by length, cut into
chunks, padded and sent to the devices a little ahead of what is fetched;
results are put back into their order. The program may return anything that has
a row for each text: embeddings, scores, tokens. Shape and content of a chunk
depend on the texts alone, and a device computes whole chunks. So a result is
the same to the last bit on any number of devices of a kind.
"""

import abc
import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import functools
import itertools
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dualenc_jax.compression import Codec
from dualenc_jax.text.ragged import Ragged
from dualenc_jax.text.tokenizer import Tokenizer

# What the digest of a tower's parts is called, see `tower_digest`.
TOWER_SHA256 = 'tower_sha256'
# Steps that wait on the devices while the host is busy with an earlier one.
AHEAD = 2


@dataclasses.dataclass(frozen=True)
class Shapes:
  """Which shapes chunks have: here each is as long as its longest text.

  Attributes:
    max_tokens: the most tokens of a chunk, padding counted; it has more than
      half of them unless the batch size is in the way.
    least_chunks: chunks of one length at least, while there are texts.
  """

  max_tokens: int
  least_chunks: ClassVar[int] = 1

  def padded_length(self, longest: int) -> int:
    """Tokens of the rows that hold a text of `longest` tokens."""
    return longest


@dataclasses.dataclass(frozen=True)
class Grid(Shapes):
  """Lengths for programs that compile when they are first needed.

  A set too small to keep many devices busy at many lengths, or to be worth many
  programs, has few.

  Attributes:
    lengths: how many there are for each doubling of the length; no two are
      closer than 8.
  """

  lengths: int
  least_chunks: ClassVar[int] = 8

  def padded_length(self, longest: int) -> int:
    step = max((1 << (longest - 1).bit_length()) // (2 * self.lengths), 8)
    return max(-(-longest // step), 1) * step


@dataclasses.dataclass(frozen=True)
class Fixed(Shapes):
  """The shortest of given lengths.

  Attributes:
    lengths: all there are, ascending.
  """

  lengths: Sequence[int]

  def padded_length(self, longest: int) -> int:
    return next(length for length in self.lengths if length >= longest)


# On a CPU the activations of small chunks stay in the cache, tokens are dear,
# and a program compiles in about a second.
CPU = Grid(max_tokens=2048, lengths=8)
# An accelerator wants products large enough to fill it, calls long enough to
# hide the host behind them, and fewer programs, which take longer to compile.
ACCELERATOR = Grid(max_tokens=32768, lengths=4)


class Chunk(NamedTuple):
  """Texts that a device computes at once.

  Attributes:
    start: the first of them, in descending order of length.
    stop: the place after the last.
    rows: a text each; those that are left over are padding.
    length: tokens of each row.
  """

  start: int
  stop: int
  rows: int
  length: int


def cut(
    lengths: np.ndarray, batch_size: int, shapes: Shapes
) -> Iterator[Chunk]:
  """Cuts texts into chunks, which no device count has a say in.

  Args:
    lengths: of the texts, in descending order.
    batch_size: most rows of a chunk.
    shapes: of chunks; a text that is longer than one is a chunk.
  """
  start, count = 0, len(lengths)
  while start < count:
    length = shapes.padded_length(int(lengths[start]))
    rows = max(min(batch_size, shapes.max_tokens // length), 1)
    rows = 1 << (rows.bit_length() - 1)
    # One query alone is not to cost a whole chunk.
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

  The devices work on the next steps while one is yielded; no more than these
  are in memory.

  Args:
    program: int32 [devices, R, L] tokens, padded with 0, a chunk for each
      device -> an array [devices, R, ...], which need not be computed yet.
    tokens: of all texts.
    batch_size: most rows of a chunk, rounded down to a power of two.
    shapes: of chunks.
    rows: which texts; None for all.
    devices: chunks that are computed side by side.

  Yields:
    (int64 [n] positions in `rows`, [n, ...] their results).
  """
  if rows is None:
    rows = np.arange(len(tokens))
  lengths = tokens.lengths[rows]
  order = np.argsort(-lengths, kind='stable')
  waiting = collections.deque()
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


def put_back(
    out: np.ndarray, found: Iterable[tuple[np.ndarray, np.ndarray]]
) -> np.ndarray:
  """Fills an array, a row a text, with what `batches` yields; returns it."""
  for positions, results in found:
    out[positions] = results
  return out


def _fetch(
    positions: np.ndarray, results: Any
) -> tuple[np.ndarray, np.ndarray]:
  found = np.asarray(results)
  return positions, found.reshape(-1, *found.shape[2:])[: len(positions)]


class Towers(abc.ABC):
  """Two towers, compiled; whoever wrote their programs.

  Attributes:
    dim: D, of the embeddings.
  """

  dim: int

  @abc.abstractmethod
  def batches(
      self,
      method: str,
      params: Any,
      tokens: Ragged,
      rows: np.ndarray | None = None,
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Encodes step by step, the longest rows first.

    Args:
      method: 'encode_query' or 'encode_passage'.
      params: the model's parameters.
      tokens: token ids.
      rows: which of them; None for all.

    Yields:
      (int64 [n] positions in `rows`, float32 [n, D] their embeddings).
    """

  @abc.abstractmethod
  def digest(self, params: Any, tower: str) -> Mapping[str, str]:
    """SHA-256 of the parts of a tower, as of `tower_digest.digest`.

    Args:
      params: the model's parameters.
      tower: 'query' or 'passage'.
    """

  def queries(
      self, params: Any, tokens: Ragged, rows: np.ndarray | None = None
  ) -> np.ndarray:
    """Embeds tokenised queries.

    Args:
      params: the model's parameters.
      tokens: token ids.
      rows: which of them, in the order wanted; None for all.

    Returns:
      float32 [len(rows), D].
    """
    return self._collect('encode_query', params, tokens, rows)

  def passages(
      self, params: Any, tokens: Ragged, rows: np.ndarray | None = None
  ) -> np.ndarray:
    """Embeds tokenised passages; see `queries`."""
    return self._collect('encode_passage', params, tokens, rows)

  def _collect(self, method, params, tokens, rows) -> np.ndarray:
    count = len(tokens) if rows is None else len(rows)
    return put_back(
        np.empty((count, self.dim), np.float32),
        self.batches(method, params, tokens, rows),
    )


@dataclasses.dataclass(frozen=True)
class PassageTower:
  """The passage tower that a query tower belongs to, which lies elsewhere.

  Attributes:
    length: most tokens of a text, EOS included.
    prefix: put in front of every text.
    sha256: digests of its parts, as of `tower_digest.digest`.
  """

  length: int
  prefix: str
  sha256: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Loaded:
  """Two towers with their parameters, and how texts become their tokens.

  Attributes:
    params: the parameters on the devices, as `embedder` takes them.
    tokenizer: vocabulary, lengths and prefixes.
    embedder: the towers, compiled.
    provenance: what numbers and vectors of this model depend on, as JSON.
    codec: that was trained with the towers; passages are indexed as its codes.
      None keeps their embeddings.
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
    """SHA-256 of the parts of a tower, 'query' or 'passage', by part.

    It is of what the tower computes, so that it is the same in all forms of a
    model, and of two models that share it. All parameters of the tower are
    read when it is first asked for.
    """
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
