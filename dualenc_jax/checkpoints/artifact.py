"""An artifact as a checkpoint: to convert, or to train from."""

import pathlib

from dualenc_jax.checkpoints.model_dirs import TRAINED_DIMS
from dualenc_jax.checkpoints.weights import infer_encoder, Usage, Weights
from dualenc_jax.retrieval.encoding.artifact import manifest as manifest_lib
from dualenc_jax.retrieval.encoding.artifact.manifest import Manifest
from dualenc_jax.utils import json_file
from dualenc_jax.utils.tensor_files import safetensors_file
from dualenc_jax.utils.tensor_files.stacked_layers import unstack

KIND = 'jax.export artifact'


def is_one(path: pathlib.Path) -> bool:
  """Whether `Retriever.save` or `--to=jax_export` wrote this folder."""
  return (path / manifest_lib.FILE).is_file()


def read(path: pathlib.Path) -> Weights:
  """Its weights, read on demand; UserError where a file has changed."""
  manifest = Manifest.read(path)
  manifest.check_model(path)
  types = {'checkpoint_step?': int | None, f'{TRAINED_DIMS}?': [int]}
  where = f'{path / manifest_lib.FILE}: provenance'
  json_file.check(manifest.provenance, types, where, 'Copy it again.')
  tensors = unstack(safetensors_file.read(path / manifest_lib.WEIGHTS))
  query, passage = manifest.towers['query'], manifest.passages
  activations = getattr(passage, 'activations', None)
  has_own = any(name.startswith('passage_encoder/') for name in tensors)
  return Weights(
      KIND,
      str(path),
      tensors,
      infer_encoder(tensors, tuple(query.activations)),
      infer_encoder(tensors, activations, 'passage_encoder')
      if has_own
      else None,
      Usage(
          path / manifest_lib.VOCABULARY, None, query.length, passage.length,
          query.prefix, passage.prefix, manifest.prompts,
          manifest.default_prompt,
      ),
      step=manifest.provenance.get('checkpoint_step'),
      passage_tower=manifest.passage_tower,
      trained_dims=tuple(manifest.provenance.get(TRAINED_DIMS, ())),
  ).check()
