"""Commands that are killed, and whether runs end as if they had not been."""

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


def start(
    *argv: str, devices: int = 8, stderr: int | None = None
) -> subprocess.Popen:
  """`dualenc ARGV` in a process group of its own, without its output."""
  flags = os.environ['XLA_FLAGS']
  flags = flags.replace('device_count=8', f'device_count={devices}')
  return subprocess.Popen(
      [sys.executable, '-m', 'dualenc_jax', *argv],
      env=os.environ | {'XLA_FLAGS': flags}, start_new_session=True,
      stdout=subprocess.DEVNULL, stderr=stderr, text=True,
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


def steps(model_dir: pathlib.Path) -> list[int]:
  """The steps of complete checkpoints, in order."""
  names = [path.name for path in (model_dir / 'checkpoints').glob('*')]
  return sorted(int(name) for name in names if name.isdecimal())


def newest(model_dir: pathlib.Path) -> int:
  """The step of the newest complete checkpoint, 0 of none."""
  return max(steps(model_dir), default=0)


def saved(model_dir: pathlib.Path, step: int) -> dict[str, np.ndarray]:
  """All tensors of a checkpoint, read by Orbax without our code."""
  arrays = {}
  for item in ('params', 'optimizer'):
    reader = ocp.PyTreeCheckpointer()
    path = model_dir.absolute() / 'checkpoints' / str(step) / item
    # As NumPy has them, on however many hosts they were.
    tree = reader.restore(
        path,
        restore_args=jax.tree.map(
            lambda _: ocp.RestoreArgs(restore_type=np.ndarray),
            reader.metadata(path).item_metadata.tree,
        ),
    )
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
      arrays[item + jax.tree_util.keystr(path)] = np.asarray(leaf)
  return arrays


def assert_bit_equal(a: dict, b: dict) -> None:
  assert a.keys() == b.keys() and len(a) > 40
  for name in a:
    np.testing.assert_array_equal(a[name], b[name], err_msg=name)
