"""Runs that are made once, and read by the tests of all workers."""

from collections.abc import Callable
import os
import pathlib
import shutil

import filelock
import tiny_run

from dualenc_jax.cli import train


def once(name: str, make: Callable[[pathlib.Path], object]) -> pathlib.Path:
  """The folder that `make` has filled for the first worker that asked."""
  home = pathlib.Path(os.environ['DUALENC_CACHE']) / 'runs' / name
  home.parent.mkdir(exist_ok=True)
  with filelock.FileLock(home.with_suffix('.lock')):
    if not (home / 'made').exists():
      shutil.rmtree(home, ignore_errors=True)
      home.mkdir()
      make(home)
      (home / 'made').touch()
  return home


def cross_encoder() -> pathlib.Path:
  """The model_dir of a calibrated cross-encoder of 30 steps."""
  return _trained(
      'cross_encoder', '--gin_file=architectures/cross_encoder.gin',
      '--gin.PAIR_LENGTH=48', '--gin.NUM_NEGATIVES=1', '--gin.EVAL_EVERY=30',
  )


def generator() -> pathlib.Path:
  """The model_dir of a generator of queries of 30 steps."""
  return _trained('generator', run='runs/doc2query.gin')


def _trained(name: str, *flags: str, **run: str) -> pathlib.Path:
  """Of pairs of `tiny_run` that lie beside the model_dir."""

  def make(home: pathlib.Path) -> None:
    train.main([
        *tiny_run.flags(home, *flags, **run), '--gin.STEPS=30',
        '--gin.LEARNING_RATE=1e-2', f'--model_dir={home / "model"}',
    ])

  return once(name, make) / 'model'
