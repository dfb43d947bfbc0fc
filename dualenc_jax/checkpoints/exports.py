"""Reads programs of `jax.export` and their weights as a checkpoint."""

import pathlib

from dualenc_jax.checkpoints.checkpoint_reader import TRAINED_DIMS
from dualenc_jax.checkpoints.weights import infer_encoders, Usage, Weights
from dualenc_jax.retrieval.encoding import artifact
from dualenc_jax.utils import json_file
from dualenc_jax.utils.tensor_files import safetensors_file
from dualenc_jax.utils.tensor_files.tensors import unstack


def is_artifact(path: pathlib.Path) -> bool:
  """Whether `Retriever.save` or `--to=jax_export` wrote this folder."""
  return (path / artifact.FILE).is_file()


def read_artifact(path: pathlib.Path) -> Weights:
  """Reads a jax.export artifact; UserError where a file has changed."""
  manifest = artifact.Manifest.read(path)
  artifact.check_files(path, manifest.model_files)
  types = {'checkpoint_step?': int | None, f'{TRAINED_DIMS}?': [int]}
  where = f'{path / artifact.FILE}: provenance'
  json_file.check(manifest.provenance, types, where, 'Copy it again.')
  tensors = unstack(safetensors_file.read(path / artifact.WEIGHTS))
  query, passage = manifest.towers['query'], manifest.passages
  return Weights(
      'jax.export artifact',
      str(path),
      tensors,
      *infer_encoders(
          tensors, query.activations, getattr(passage, 'activations', None)
      ),
      Usage(
          path / artifact.VOCABULARY, None, query.length, passage.length,
          query.prefix, passage.prefix, manifest.prompts,
          manifest.default_prompt,
      ),
      step=manifest.provenance.get('checkpoint_step'),
      passage_tower=manifest.passage_tower,
      trained_dims=tuple(manifest.provenance.get(TRAINED_DIMS, ())),
  ).check()
