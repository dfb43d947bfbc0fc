"""A tiny dual encoder, generator and cross-encoder, and a corpus."""

import tiny_beir
import tiny_run

from dualenc_jax.commands import train


def make(folder):
  """Trains them in a folder, `dense`, `generator`, `teacher`, and `corpus`."""
  pairs = tiny_run.flags(folder)
  train.main([
      *pairs, '--gin.TEMPERATURE=0.1', '--gin.CHECKPOINT_EVERY=10',
      f'--model_dir={folder / "dense"}',
  ])
  train.main([
      *pairs, '--gin_file=architectures/cross_encoder.gin',
      '--gin.PAIR_LENGTH=48', f'--model_dir={folder / "teacher"}',
  ])
  train.main([
      *tiny_run.flags(folder, run='runs/doc2query.gin'),
      '--gin.STEPS=30', '--gin.LEARNING_RATE=1e-2',
      f'--model_dir={folder / "generator"}',
  ])
  tiny_beir.make_large().write(folder / 'corpus')
  return folder
