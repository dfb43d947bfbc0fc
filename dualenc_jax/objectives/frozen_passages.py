"""All passages of a run, encoded once by a frozen passage tower."""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import hashlib
import logging
import pathlib
from typing import Any, ClassVar

import jax
import numpy as np

from dualenc_jax.data import Batches
from dualenc_jax.data.text.ragged import (
  as_uint32_pairs,
  DistinctTexts,
  from_uint32_pairs,
  Ragged,
)
from dualenc_jax.models import DualEncoder, model_params
from dualenc_jax.objectives.objective import Run
from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.retrieval.compression import Codec
from dualenc_jax.retrieval.encoding.embedder import Embedder
from dualenc_jax.utils import files, finite, json_file, machine
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.files import format_size
from dualenc_jax.utils.progress import Progress

# Passages whose embeddings are in memory at once.
_BLOCK = 2**17
# The share of a device's memory for them; the rest is for the step.
_SHARE_OF_MEMORY = 0.6
_HEADER, _STATES = 'states.json', 'states.npy'
_AGAIN = 'Remove the folder to encode them again, or give another STATES_DIR.'
_LOG = logging.getLogger(__name__)


class Passages(DistinctTexts):
  """The distinct passages and hard negatives of token caches."""

  def __init__(self, caches: Sequence[Any], corpora: Sequence[Any] = ()):
    """Takes token caches, and `corpora`, whose passages also count."""
    caches = [*caches, *corpora]
    passages = [(c.passage_tokens, c.passage_fingerprints) for c in caches]
    hard = [(c.negative_tokens, c.negative_fingerprints) for c in caches]
    super().__init__([x for pair in zip(passages, hard) for x in pair])

  def encode(
      self, embedder: Embedder, params: Any, method: str, features: int
  ) -> np.ndarray:
    """Encodes all, float32 [N, F], by 'encode_passage' or 'pool_passage'."""
    out = np.empty((len(self), features), np.float32)
    with Progress('Encoding', len(self), 'passages') as progress:
      for tokens, here, rows in self._by_part():
        for positions, block in embedder.batches(method, params, tokens, rows):
          out[here[positions]] = block
          progress(len(positions))
    finite.check_rows('passage states', out)
    return out

  def copy_tokens(self, out: np.ndarray) -> None:
    """Fills integers [N, L] with the tokens, padded with 0."""
    for tokens, here, rows in self._by_part():
      out[here] = tokens.padded(rows, out.shape[1])

  def _by_part(self) -> Iterator[tuple[Ragged, np.ndarray, np.ndarray]]:
    """Yields tokens, which passages are among them, and their rows there."""
    firsts = self.pool.first
    for tokens, first, last in zip(self.parts, firsts, firsts[1:]):
      here = np.flatnonzero((self.rows >= first) & (self.rows < last))
      yield tokens, here, self.rows[here] - first


@dataclasses.dataclass(frozen=True, eq=False)
class TargetedBatches(Batches):
  """Batches with one more array, `targets` int32 [b, 1 + P].

  These are the numbers, among all passages, of a query's own passage and its
  other labelled ones; the own is repeated where there are fewer.
  """

  all_passages: Passages | None = None

  def __call__(self, step: int, cells: Any = slice(None)) -> dict[str, Any]:
    batch = super().__call__(step, cells)
    ids = batch['passage_ids'][:, None]
    if 'positive_ids' in batch:
      ids = np.concatenate([ids, batch['positive_ids']], axis=1)
    assert self.all_passages is not None
    numbers = self.all_passages.numbers(from_uint32_pairs(ids))
    return {**batch, 'targets': numbers.astype(np.int32)}


@dataclasses.dataclass(frozen=True)
class FrozenPassages:
  """The encoded passages of a run, which become arrays of its batches.

  The arrays are `states` [N, width], `state_valid` bool [N] and `state_ids`
  uint32 [N, 2], where N is padded to a multiple of the batch size.

  Attributes:
    whole_corpus: whether the task's corpus counts, too, if there is one beside
      the passages of the pairs.
    states_dir: a folder that keeps the states for this run when it resumes, and
      for others of the same passage tower; None encodes at every start.
    method: 'encode_passage', or 'pool_passage' for states before projection.
  """

  model: DualEncoder
  whole_corpus: bool = True
  states_dir: str | None = None
  method: str = 'encode_passage'
  unit: ClassVar[str] = 'state'
  dtype: ClassVar[Any] = np.float32

  @property
  def width(self) -> int:
    """How many numbers are kept of a passage."""
    if self.method == 'pool_passage':
      embedder = self.model.passage_token_embedder or self.model.token_embedder
      return embedder.features
    return self.model.projection.features

  @property
  def frozen(self) -> tuple[str, ...]:
    """Expressions of the parameters that the arrays depend on."""
    if self.method == 'pool_passage':
      return 'passage_(token_embedder|encoder)/.*',
    return passage_tower(self.model)

  @property
  def facts(self) -> dict[str, Any]:
    """Facts of the model beside those of its towers."""
    return {}

  def init(self) -> dict[str, Any]:
    """Returns parameters beside those of the towers."""
    return {}

  def codec_of(self, params: Any) -> Codec | None:
    """Returns the codec as trained so far, if the passages are codes."""
    return None

  def encode(
      self, passages: Passages, embedder: Embedder, params: Any
  ) -> np.ndarray:
    """Returns the numbers that are kept of some passages, [n, width]."""
    return passages.encode(
        embedder, model_params(params), self.method, self.width
    )

  def encoding_facts(self, params: Any) -> dict[str, Any]:
    """Returns what `encode` depends on beside the passage tower, JSON."""
    return {}

  def add_targets(self, batches: Batches, run: Run) -> TargetedBatches:
    """Returns the batches with the numbers of their passages."""
    fields = dataclasses.fields(batches)
    corpora = run.corpora if self.whole_corpus else ()
    return TargetedBatches(
        **{field.name: getattr(batches, field.name) for field in fields},
        all_passages=Passages(run.caches, corpora),
    )

  def abstract(self, run: Run, batch: Any) -> dict[str, Any]:
    """Returns targets and arrays of a batch, abstract."""
    others = 0
    if 'positive_ids' in batch:
      others = batch['positive_ids'].shape[1]
    shape = batch['passage_ids'].shape[0], 1 + others
    targets = jax.ShapeDtypeStruct(shape, np.int32)
    return {'targets': targets, **self._shapes(run)}

  def _shapes(self, run: Run) -> dict[str, Any]:
    rows = self._rows(run)
    arrays = {
        f'{self.unit}s': jax.ShapeDtypeStruct((rows, self.width), self.dtype),
        f'{self.unit}_valid': jax.ShapeDtypeStruct((rows,), bool),
    }
    if self.unit == 'state':
      arrays['state_ids'] = jax.ShapeDtypeStruct((rows, 2), np.uint32)
    return arrays

  def _rows(self, run: Run) -> int:
    return -(-len(run.batches.all_passages) // run.batch_size) * run.batch_size

  def arrays(self, run: Run, params: Any) -> dict[str, Any]:
    """Returns the arrays on the mesh, rows over the data axis."""
    passages = run.batches.all_passages
    embedder = Embedder.for_params(self.model, params, run.partitioner)

    def header() -> dict[str, Any]:
      tower = embedder.digest(model_params(params), 'passage')
      if self.method == 'pool_passage':
        del tower['projection']
      content = hashlib.sha256(passages.fingerprints.astype('<u8').tobytes())
      return {
          'method': self.method,
          'features': self.width,
          'passages': len(passages),
          'passages_sha256': content.hexdigest(),
          **{f'{part}_sha256': sha256 for part, sha256 in tower.items()},
          **self.encoding_facts(params),
      }

    def make() -> np.ndarray:
      out = np.empty((len(passages), self.width), self.dtype)
      for first in range(0, len(out), _BLOCK):
        block = out[first : first + _BLOCK]
        some = passages.select(np.arange(first, first + len(block)))
        block[:] = self.encode(some, embedder, params)
      return out

    arrays = {
        f'{self.unit}s': _make_or_load(self.states_dir, header, make),
        f'{self.unit}_valid': np.ones(len(passages), bool),
    }
    if self.unit == 'state':
      arrays['state_ids'] = as_uint32_pairs(passages.fingerprints)
    return put_rows(arrays, self._rows(run), run.partitioner)

  def describe(self, run: Run) -> str:
    """Returns a line on the memory; UserError if it does not suffice."""
    return describe_memory(
        f'The {self.unit}s of {len(run.batches.all_passages):,} passages',
        self._shapes(run), run.partitioner,
        'WHOLE_CORPUS=False for the passages of the training pairs alone',
    )


def check_separate_encoders(name: str, model: DualEncoder) -> None:
  """Raises UserError unless queries have their own encoder."""
  if model.passage_encoder is None:
    raise UserError(
        f'{name} trains the query tower alone, but the towers share their'
        ' encoder. Give --gin_file=architectures/light_query.gin.'
    )


def passage_tower(model: DualEncoder) -> tuple[str, ...]:
  """Returns expressions of all parameters of passages, shared ones too."""
  shared = [
      f'{part}/.*' for part in ('token_embedder', 'projection')
      if getattr(model, f'passage_{part}') is None
  ]
  return 'passage_.*', *shared


def describe_memory(
    what: str, arrays: Any, partitioner: Partitioner, advice: str
) -> str:
  """Describes the memory of arrays whose leading axes go over the data axis.

  Raises UserError, with the advice, for more than 60% of a device's memory.
  """
  devices, memory = partitioner.mesh.shape['data'], machine.device_memory()
  total = sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(arrays))
  needed = total // devices
  where = 'the device' if devices == 1 else f'each of {devices} devices'
  text = f'{what} take {format_size(needed)} on {where}'
  if memory is not None and needed > _SHARE_OF_MEMORY * memory:
    raise UserError(
        f'{text}, of {format_size(memory)} in all. Expected at most'
        f' {_SHARE_OF_MEMORY:.0%} of it: use more devices, or {advice}.'
    )
  return f'{text}.'


def put_rows(tree: Any, rows: int, partitioner: Partitioner) -> Any:
  """Puts arrays, the same on all hosts, on the mesh, rows over the data axis.

  They are padded with zeros to `rows`.
  """

  def on_mesh(host):
    def part(index):
      first, last, _ = index[0].indices(rows)
      out = np.zeros((last - first, *host.shape[1:]), host.dtype)
      real = host[first:last]
      out[: len(real)] = real
      return out

    shape = rows, *host.shape[1:]
    return jax.make_array_from_callback(shape, partitioner.rows, part)

  return jax.tree.map(on_mesh, tree)


def _make_or_load(
    folder: str | None, header: Callable[[], dict[str, Any]],
    make: Callable[[], np.ndarray],
) -> np.ndarray:
  """Returns [N, F] of all passages, from `make` or an earlier run's folder.

  Raises UserError if the folder is damaged or has other facts than `header`.
  """
  if folder is None:
    return make()
  facts, path = header(), pathlib.Path(folder)
  if not (path / _HEADER).exists():
    states = make()
    if not jax.process_index():
      with files.new_folder(folder, 'another STATES_DIR', _HEADER) as new:
        np.save(new / _STATES, states)
        files.write_json(new / _HEADER, facts)
    return states
  saved = json_file.read(path / _HEADER, _AGAIN)
  changed = [name for name in facts if saved.get(name) != facts[name]]
  if changed:
    raise UserError(
        f'{folder} has states of other passages, or of another passage tower'
        f' than this run has: {", ".join(changed)} changed since they were'
        f' encoded. {_AGAIN}'
    )
  try:
    states = np.load(path / _STATES, mmap_mode='r')
  except Exception as e:  # NumPy parses its header by Python's own parser.
    raise UserError(f'{path / _STATES} cannot be read: {e}. {_AGAIN}') from e
  _LOG.info('Loaded the passages of %s.', folder)
  return states
