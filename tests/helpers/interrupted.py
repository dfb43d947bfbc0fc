"""Commands that are killed, and whether runs end as if they had not been."""

from collections.abc import Iterator
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from dualenc_jax.training.checkpoints import Checkpoints


def start(
    *argv: str, devices: int = 1, stderr: int | None = None
) -> subprocess.Popen:
  """`dualenc ARGV` in a process group of its own, without its output."""
  return subprocess.Popen(
      [sys.executable, '-m', 'dualenc_jax', *argv],
      env=os.environ | {'JAX_NUM_CPU_DEVICES': str(devices)},
      start_new_session=True, stdout=subprocess.DEVNULL, stderr=stderr,
      text=True,
  )


def kill_at(
    process: subprocess.Popen, work_dir: pathlib.Path, sign: str
) -> None:
  """Kills a recipe, and its stage, once a file or folder exists.

  The sign is the stage's folder, or something in it; a file has content.
  """
  path = work_dir / sign
  while not (path.exists() and (path.is_dir() or path.stat().st_size)):
    assert process.poll() is None, sign
    time.sleep(0.01)
  os.killpg(process.pid, signal.SIGKILL)
  process.wait()
  name = sign.split('/')[0]
  record = json.loads((work_dir / f'.stages/{name}.json').read_text())
  assert not record['done'], sign


@contextlib.contextmanager
def stopped_at(step: int, saved: bool = True) -> Iterator[None]:
  """Training stops by an error right after `step` is saved, or before it."""
  save = Checkpoints.save

  def stop(self, state, at, meta):
    if at != step or saved:
      save(self, state, at, meta)
    if at == step:
      self.wait()
      raise KeyboardInterrupt

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(Checkpoints, 'save', stop)
    with pytest.raises(KeyboardInterrupt):
      yield


def steps(model_dir: pathlib.Path) -> list[int]:
  """The steps of complete checkpoints, in order."""
  names = [path.name for path in (model_dir / 'checkpoints').glob('*')]
  return sorted(int(name) for name in names if name.isdecimal())


def newest(model_dir: pathlib.Path) -> int:
  """The step of the newest complete checkpoint, 0 of none."""
  return max(steps(model_dir), default=0)


def item(
    model_dir: pathlib.Path, step: int, name: str
) -> dict[str, np.ndarray]:
  """The tensors of an item of a checkpoint, read by Orbax without our code."""
  reader = ocp.PyTreeCheckpointer()
  path = model_dir.absolute() / 'checkpoints' / str(step) / name
  # As NumPy has them, on however many hosts they were.
  tree = reader.restore(
      path,
      restore_args=jax.tree.map(
          lambda _: ocp.RestoreArgs(restore_type=np.ndarray),
          reader.metadata(path).item_metadata.tree,
      ),
  )
  return {
      jax.tree_util.keystr(path, simple=True, separator='/'): np.asarray(leaf)
      for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


def saved(model_dir: pathlib.Path, step: int) -> dict[str, np.ndarray]:
  """All tensors of a checkpoint but those of a memory."""
  return {
      f'{each}/{name}': array
      for each in ('params', 'optimizer')
      for name, array in item(model_dir, step, each).items()
  }


def assert_bit_equal(a: dict, b: dict) -> None:
  assert a.keys() == b.keys() and len(a) > 40
  for name in a:
    np.testing.assert_array_equal(a[name], b[name], err_msg=name)
