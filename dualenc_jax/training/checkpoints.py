"""Checkpoints of a run: asynchronous, atomic, restored onto any mesh.

A checkpoint holds `params`, `optimizer`, `meta` (JSON: step, facts of the data,
the whole gin config) and the objective's `memory`, if it has one. Orbax writes
each into a temporary folder, which it renames when it is complete. It checks no
file that it reads, so `meta` has the SHA-256 of each, and its own checksum.
"""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import json
import logging
import pathlib
import shutil
from typing import Any

from etils import epath
import jax
from jax.experimental import multihost_utils
import orbax.checkpoint as ocp

from dualenc_jax.checkpoints import loading
from dualenc_jax.checkpoints.weights import list_first, VOCABULARY
from dualenc_jax.data.text.tokenizer import Vocabulary
from dualenc_jax.parallel import partitioning
from dualenc_jax.training.hooks import Training
from dualenc_jax.training.step import TrainState
from dualenc_jax.utils import files
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files import checkpoint_meta
from dualenc_jax.utils.tensor_files.tensors import DamageError

_LOG = logging.getLogger(__name__)
_TREES = 'params', 'optimizer', 'memory'
_LOWER_IS_BETTER = ('perplexity',)
# Bytes that `save_params` writes at once, and of a file.
_AT_ONCE, _DATA_FILE = 200 << 20, 50 << 20
# Restoring a good checkpoint may raise these: another model, no memory.
_NOT_DAMAGE = (UserError, MemoryError, jax.errors.JaxRuntimeError)


class _MetaHandler(ocp.JsonCheckpointHandler):
  """Adds the digests of all files before a checkpoint is complete."""

  def finalize(self, directory: epath.Path) -> None:
    # Orbax finalizes items in the order of their handlers, on one host.
    folder = pathlib.Path(directory)
    path = folder / pathlib.Path(checkpoint_meta.FILE).name
    meta = json.loads(path.read_text())
    sealed = checkpoint_meta.seal(
        meta, checkpoint_meta.digest_items(folder.parent)
    )
    path.write_text(json.dumps(sealed))


@ocp.args.register_with_handler(_MetaHandler, for_save=True, for_restore=True)
class _MetaSave(ocp.args.JsonSave):
  """The argument of `_MetaHandler`."""


class Checkpoints:
  """The folder `<model_dir>/checkpoints`."""

  def __init__(self, model_dir: str | pathlib.Path, keep: int = 3):
    """Opens the folder, which the first save makes; keeps the newest `keep`."""
    self.folder = pathlib.Path(model_dir).absolute() / 'checkpoints'
    self._broken = self.folder.parent / 'broken_checkpoints'
    self._keep = keep
    self._manager = None
    # A step to keep, however many come after it.
    self.best: int | None = None

  @property
  def manager(self) -> ocp.CheckpointManager:
    if self._manager is None:
      self._manager = ocp.CheckpointManager(
          self.folder,
          options=ocp.CheckpointManagerOptions(preservation_policy=self),
          # Given here, so that metadata can be read before any save.
          item_handlers={
              **{name: ocp.StandardCheckpointHandler() for name in _TREES},
              'meta': _MetaHandler(),
          },
      )
    return self._manager

  def should_preserve(
      self, checkpoints: Sequence[Any], **_: Any
  ) -> Sequence[bool]:
    """Returns whether to keep each of these checkpoints, for Orbax."""
    newest = len(checkpoints) - self._keep
    return [
        i >= newest or each.step == self.best
        for i, each in enumerate(checkpoints)
    ]

  def steps(self) -> list[int]:
    """Returns the steps of the complete checkpoints, oldest first."""
    return sorted(self.manager.all_steps()) if self.folder.exists() else []

  def save(self, state: TrainState, step: int, meta: Mapping[str, Any]) -> None:
    """Starts to save; the state may be donated as soon as this returns.

    Args:
      state: the state after the step.
      step: steps taken.
      meta: JSON that is written beside the tensors.

    Raises:
      UserError: this or the previous, asynchronous save failed.
    """
    items = _items(state)
    with self._explain_errors():
      self.manager.save(
          step,
          args=ocp.args.Composite(
              **{name: ocp.args.StandardSave(x) for name, x in items.items()},
              meta=_MetaSave({**meta, 'step': step}),
          ),
          force=True,
      )

  def rewrite_meta(self, step: int, meta: Mapping[str, Any]) -> None:
    """Replaces the `meta` of a complete checkpoint."""
    if jax.process_index():
      return
    _, known = checkpoint_meta.read(self.folder / str(step))
    meta = {**meta, 'step': step}
    if known is not None:
      meta = checkpoint_meta.seal(meta, known)
    files.write_json(self.folder / str(step) / checkpoint_meta.FILE, meta, True)

  def save_params(
      self, params: Any, step: int, meta: Mapping[str, Any]
  ) -> None:
    """Saves parameters alone, a model that no run resumes; waits for the disk.

    No second copy is in memory: by default Orbax writes all tensors at once,
    and buffers files of up to 2 GB.
    """
    largest = max(leaf.nbytes for leaf in jax.tree.leaves(params))
    at_once = max(largest + 1, _AT_ONCE)
    with self._explain_errors():
      handlers = {
          'params': ocp.PyTreeCheckpointHandler(
              save_concurrent_gb=at_once / 1e9
          ),
          'meta': _MetaHandler(),
      }
      options = ocp.CheckpointManagerOptions(enable_async_checkpointing=False)
      with ocp.CheckpointManager(
          self.folder, item_handlers=handlers, options=options
      ) as manager:
        manager.save(
            step,
            args=ocp.args.Composite(
                params=ocp.args.PyTreeSave(
                    params, ocdbt_target_data_file_size=_DATA_FILE
                ),
                meta=_MetaSave({**meta, 'step': step}),
            ),
        )

  def wait(self) -> None:
    """Returns when everything is on disk; raises as `save` does."""
    if self._manager is None:
      return  # It would make the folder.
    with self._explain_errors():
      self.manager.wait_until_finished()

  def restore(self, abstract: TrainState) -> tuple[TrainState, dict] | None:
    """Restores the newest undamaged checkpoint on the shardings of `abstract`.

    Newer checkpoints that cannot be read, differ from what was saved, or have
    numbers that are not finite, are moved to `broken_checkpoints` with a
    warning, so that their steps can be saved again.

    Returns:
      The state and the `meta` saved with it; None without any checkpoint.

    Raises:
      UserError: the checkpoint is of another model, or none can be read.
    """
    unreadable = {}
    wanted = _items(abstract)
    for step in reversed(self.steps()):
      try:
        restored, meta = self._restore_items(step, wanted)
      except DamageError as e:
        unreadable[step] = str(e)
        continue
      except _NOT_DAMAGE:
        raise
      except Exception as e:  # Damage takes many forms.
        unreadable[step] = _root_cause(e)
        continue
      for broken, cause in unreadable.items():
        self._set_aside(broken, cause)
      state = TrainState(
          jax.device_put(jax.numpy.int32(step), abstract.step.sharding),
          restored.params,
          restored.optimizer,
          restored.get('memory', abstract.memory),
      )
      return state, meta
    if unreadable:
      causes = '; '.join(f'{step}: {text}' for step, text in unreadable.items())
      raise UserError(
          f'No checkpoint in {self.folder} can be read ({causes}). Restore them'
          ' from a copy, or train anew in another MODEL_DIR.'
      )
    return None

  def _restore_items(
      self, step: int, abstract: Mapping[str, Any]
  ) -> tuple[Any, dict[str, Any]]:
    folder = self.folder / str(step)
    meta, known = checkpoint_meta.read(folder, **checkpoint_meta.TYPES)
    for name in known or ():
      checkpoint_meta.check_item(folder / name, known)
    metadata = self.manager.item_metadata(step)
    if 'optimizer' not in metadata.keys() and 'converted_from' in meta:
      raise UserError(
          f'{self.folder.parent} was converted, and has no optimizer state to'
          ' resume from. Train in another MODEL_DIR, from'
          f' --gin.INITIAL_CHECKPOINT_PATH={self.folder.parent}.'
      )
    for name, tree in abstract.items():
      _check_same_model(folder / name, metadata.get(name), tree)
    restored = self.manager.restore(
        step,
        args=ocp.args.Composite(
            **{k: ocp.args.StandardRestore(v) for k, v in abstract.items()},
        ),
    )
    _check_finite({name: restored[name] for name in abstract})
    return restored, meta

  def _set_aside(self, step: int, cause: str) -> None:
    number, target = 1, self._broken / str(step)
    while target.exists():
      number += 1
      target = self._broken / f'{step}.{number}'
    _LOG.warning(
        'Checkpoint %d in %s cannot be read (%s); it is moved to %s and the one'
        ' before it is used.',
        step, self.folder, cause, target,
    )
    if jax.process_index() == 0:
      self._broken.mkdir(exist_ok=True)
      shutil.move(self.folder / str(step), target)
    if jax.process_count() > 1:
      # The others list the folder after the move.
      multihost_utils.sync_global_devices(f'checkpoint {step} is moved')
    self.manager.reload()

  @contextlib.contextmanager
  def _explain_errors(self) -> Iterator[None]:
    try:
      yield
    except Exception as e:
      raise UserError(
          f'Saving a checkpoint to {self.folder} failed: {_root_cause(e)}. Make'
          ' room there or change MODEL_DIR, then run the same command again to'
          ' resume.'
      ) from e


def note_best(
    run: Training, metrics: Mapping[str, float], name: str,
    patience: int | None,
) -> None:
  """Notes the best step so far, which is kept, and ends a run without one.

  The evaluation before the first step does not count: a run that only harms the
  model that it starts from would return that model in place of a trained one.

  Args:
    run: a run after an evaluation on the validation split.
    metrics: those of the evaluation.
    name: the metric that decides, KEEP_BEST.
    patience: evaluations in a row without a new best after which the run ends;
      None for no such end.

  Raises:
    UserError: there is no such metric.
  """
  if name not in metrics:
    raise UserError(
        f'KEEP_BEST is {name!r}; the evaluations on split validation have'
        f' {", ".join(metrics)}. Expected one of them.'
    )
  if not run.step:
    return
  best = run.notes.get('best')
  sign = -1 if name in _LOWER_IS_BETTER else 1
  if best is None or sign * metrics[name] > sign * best['value']:
    run.notes['best'] = {
        'step': run.step, 'metric': name, 'value': metrics[name], 'since': 0
    }
    run.save = True
    return
  best['since'] += 1
  if patience is not None and best['since'] >= patience:
    run.notes['ended'] = (
        f'{name} has not {"fallen" if sign < 0 else "risen"} at the last'
        f' {best["since"]} of the evaluations.'
    )


def write_vocabulary(model_dir: pathlib.Path, vocabulary: Vocabulary) -> None:
  """Puts the vocabulary beside the checkpoints, which need it to be opened."""
  content = vocabulary.file.read_bytes()
  files.make_folder(model_dir, 'another MODEL_DIR')
  files.write(model_dir / VOCABULARY, content, 'another MODEL_DIR')


def _items(state: TrainState) -> dict[str, Any]:
  trees = dict(zip(_TREES, (state.params, state.opt_state, state.memory)))
  return {n: v for n, v in trees.items() if n != 'memory' or jax.tree.leaves(v)}


def _check_finite(trees: Mapping[str, Any]) -> None:
  """Raises DamageError, with their names, if arrays hold NaN or infinity."""
  finite = jax.device_get(jax.tree.map(_is_finite, dict(trees)))
  bad = [
      f'{item}: {name}'
      for item, tree in finite.items()
      for name, is_finite in zip(
          partitioning.leaf_paths(tree), jax.tree.leaves(tree)
      )
      if not is_finite
  ]
  if bad:
    raise DamageError(f'{list_first(bad)} holds NaN or infinity')


@jax.jit
def _is_finite(array: jax.Array) -> jax.Array:
  return jax.numpy.isfinite(array).all()


def _check_same_model(where: pathlib.Path, metadata: Any, abstract: Any):
  """Raises UserError unless an item has the arrays of this run."""
  saved = {}
  if metadata is not None:
    saved = dict(_shapes(getattr(metadata, 'tree', metadata)))
  elif where.name != 'memory' or where.exists():
    raise FileNotFoundError(f'{where} has no metadata')
  loading.check_same_shapes(saved, dict(_shapes(abstract)), where)


def _shapes(tree: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    if hasattr(leaf, 'shape'):
      yield partitioning.path_string(path), tuple(leaf.shape)


def _root_cause(error: BaseException) -> str:
  """One line, without the specification that TensorStore appends."""
  while error.__cause__ is not None:
    error = error.__cause__
  line = f'{type(error).__name__}: {error}'.splitlines()[0]
  line = line.split(' [tensorstore_spec=')[0]
  # After long paths, the system's own words come last.
  return line if len(line) <= 500 else f'{line[:100]} ... {line[-400:]}'
