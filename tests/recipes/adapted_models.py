"""A tiny dual encoder, generator and cross-encoder, and a corpus."""

import os
import pathlib

import filelock
import tiny_beir
import tiny_run

from dualenc_jax.commands import train


def shared():
  """The folder of `dense`, `generator`, `teacher` and `corpus`, to read."""
  folder = pathlib.Path(os.environ['DUALENC_CACHE']) / 'adapted_models'
  folder.mkdir(exist_ok=True)
  with filelock.FileLock(folder / 'lock'):
    if not (folder / 'corpus').exists():
      pairs = tiny_run.flags(folder)
      _train(
          folder / 'dense', *pairs, '--gin.TEMPERATURE=0.1',
          '--gin.CHECKPOINT_EVERY=10',
      )
      _train(
          folder / 'teacher', *pairs, '--gin.PAIR_LENGTH=48',
          '--gin_file=architectures/cross_encoder.gin',
      )
      words = tiny_run.flags(folder, run='runs/doc2query.gin')
      _train(
          folder / 'generator', *words, '--gin.STEPS=30',
          '--gin.LEARNING_RATE=1e-2',
      )
      tiny_beir.make_large().write(folder / 'corpus')
  return folder


def _train(model_dir, *flags):
  train.main([*flags, f'--model_dir={model_dir}'])
