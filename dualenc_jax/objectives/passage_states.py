"""All passages of a run, encoded once by a frozen passage tower."""

from collections.abc import Callable, Iterator, Sequence
import hashlib
import logging
import pathlib
from typing import Any

import jax
import numpy as np

from dualenc_jax.data.text.ragged import Distinct, Ragged
from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.retrieval.encoding.embedder import Embedder
from dualenc_jax.utils import files, finite, json_file, machine, untrusted
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.files import gigabytes
from dualenc_jax.utils.progress import Progress

# Of a device's memory; the rest is for the step.
_SHARE_OF_MEMORY = 0.6
_HEADER, _STATES = 'states.json', 'states.npy'
_AGAIN = 'Remove the folder to encode them again, or give another STATES_DIR.'
_LOG = logging.getLogger(__name__)


class Passages(Distinct):
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
    """float32 [N, F], by 'encode_passage' or 'pool_passage'."""
    out = np.empty((len(self), features), np.float32)
    with Progress('Encoding', len(self), 'passages') as progress:
      for tokens, here, rows in self._by_part():
        for positions, found in embedder.batches(method, params, tokens, rows):
          out[here[positions]] = found
          progress(len(positions))
    finite.check_rows('passage states', out)
    return out

  def copy_tokens(self, out: np.ndarray) -> None:
    """Fills integers [N, L] with the tokens, padded with 0."""
    for tokens, here, rows in self._by_part():
      out[here] = tokens.padded(rows, out.shape[1])

  def _by_part(self) -> Iterator[tuple[Ragged, np.ndarray, np.ndarray]]:
    """Tokens, which of the passages are among them, and their rows there."""
    firsts = self.pool.first
    for tokens, first, last in zip(self.parts, firsts, firsts[1:]):
      here = np.flatnonzero((self.rows >= first) & (self.rows < last))
      yield tokens, here, self.rows[here] - first


def kept(
    folder: str | None, header: Callable[[], dict[str, Any]],
    make: Callable[[], np.ndarray],
) -> np.ndarray:
  """The array [N, F] of all passages, made by `make` or kept by an earlier run.

  It depends on the facts of `header`; without a folder nothing is kept. Raises
  UserError where the folder is damaged or has other facts.
  """
  if folder is None:
    return make()
  facts = header()
  found = _read(pathlib.Path(folder), facts)
  if found is None:
    found = make()
    if not jax.process_index():
      with files.new_folder(folder, 'another STATES_DIR', _HEADER) as new:
        np.save(new / _STATES, found)
        files.write_json(new / _HEADER, facts)
  return found


def check_fits(
    what: str, arrays: Any, partitioner: Partitioner, advice: str
) -> str:
  """Describes the memory of arrays whose leading axes go over the data axis.

  Raises UserError, with the advice, for more than 60% of a device's memory.
  """
  devices, there = partitioner.mesh.shape['data'], machine.device_memory()
  total = sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(arrays))
  needed = total // devices
  where = 'the device' if devices == 1 else f'each of {devices} devices'
  said = f'{what} take {gigabytes(needed)} on {where}'
  if there is not None and needed > _SHARE_OF_MEMORY * there:
    raise UserError(
        f'{said}, of {gigabytes(there)} in all, and the step needs some, too.'
        f' Expected at most {_SHARE_OF_MEMORY:.0%} of it: use more devices, or'
        f' {advice}.'
    )
  return said


def put(tree: Any, rows: int, partitioner: Partitioner) -> Any:
  """Puts arrays, the same on all hosts, on the mesh, rows over the data axis.

  They are padded with zeros to `rows`.
  """

  def on_mesh(host):
    def part(index):
      first, last, _ = index[0].indices(rows)
      out = np.zeros((last - first, *host.shape[1:]), host.dtype)
      found = host[first:last]
      out[: len(found)] = found
      return out

    shape = rows, *host.shape[1:]
    return jax.make_array_from_callback(shape, partitioner.rows, part)

  return jax.tree.map(on_mesh, tree)


def header(
    passages: Passages, embedder: Embedder, params: Any, method: str,
    features: int,
) -> dict[str, Any]:
  """Facts that the kept array of all passages depends on, JSON."""
  tower = embedder.digest(params, 'passage')
  if method == 'pool_passage':
    del tower['projection']
  content = hashlib.sha256(passages.fingerprints.astype('<u8').tobytes())
  return {
      'method': method,
      'features': features,
      'passages': len(passages),
      'passages_sha256': content.hexdigest(),
      **{f'{part}_sha256': sha256 for part, sha256 in tower.items()},
  }


def _read(folder: pathlib.Path, header: dict[str, Any]) -> np.ndarray | None:
  """Mapped states of an earlier run; None where there are none yet."""
  if not (folder / _HEADER).exists():
    return None
  found = json_file.read(folder / _HEADER, _AGAIN)
  changed = [name for name in header if found.get(name) != header[name]]
  if changed:
    raise UserError(
        f'{folder} has states of other passages, or of another passage tower'
        f' than this run has: {", ".join(changed)} changed since they were'
        f' encoded. {_AGAIN}'
    )
  path = folder / _STATES
  try:
    untrusted.open_file(path).close()
    states = np.load(path, mmap_mode='r')
  except Exception as e:  # NumPy parses its header by Python's own parser.
    raise UserError(f'{path} cannot be read: {e}. {_AGAIN}') from e
  shape = header['passages'], header['features']
  if states.dtype.kind not in 'fuV' or states.shape != shape:
    raise UserError(
        f'{path} has {states.dtype} of the shape {states.shape}. {_AGAIN}'
    )
  _LOG.info('They are those of %s.', folder)
  return states
