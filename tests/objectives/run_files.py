"""What a run of training leaves behind."""

import json

import tiny_run

from dualenc_jax.checkpoints import checkpoint_reader, formats


def logged(folder, group='train'):
  return tiny_run.logged(folder, group)


def rows_of(folder):
  """The training pairs, and all that is ranked: passages, hard negatives."""
  lines = (folder / 'train.jsonl').read_text().splitlines()
  rows = [json.loads(line) for line in lines]
  texts = {text for row in rows for text in (row['passage'], *row['negatives'])}
  return rows, sorted(texts)


def tensors(folder):
  return {n: t.read() for n, t in formats.read(folder).tensors.items()}


def tensors_and_codec(folder):
  newest = checkpoint_reader.steps(folder)[-1]
  checkpoint = checkpoint_reader.open_checkpoint(folder, newest)
  codec = {f'codec/{n}': t for n, t in checkpoint.codec_tensors.items()}
  return {n: t.read() for n, t in {**checkpoint.tensors, **codec}.items()}


def assert_same(one, other):
  """Two trees of tensors by name, bit for bit."""
  assert one.keys() == other.keys()
  for name, array in one.items():
    assert array.tobytes() == other[name].tobytes(), name
