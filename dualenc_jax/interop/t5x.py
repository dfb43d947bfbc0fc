"""Reads checkpoints of T5X: a T5, or a dual encoder of t5x_retrieval.

Either form, legacy or Orbax, holds the parameters under `target` and the state
of the optimizer under `state`. A GTR or a Sentence-T5 is an encoder-decoder's
tree without a decoder and with `projection_layer/kernel`.
"""

from collections.abc import Collection, Mapping
import os
import re

from etils import epath

from dualenc_jax.errors import UserError
from dualenc_jax.interop import t5x_layers, t5x_legacy
from dualenc_jax.interop.weights import infer_encoder, Weights
from dualenc_jax.tensor_files import zarr_files
from dualenc_jax.tensor_files.tensors import Tensor

KIND = 'T5X checkpoint'
EMBEDDING = 'token_embedder/embedding'
# Of t5x_retrieval's dual encoders.
PROJECTION = 'projection_layer/kernel'
# Our names by others. In flaxformer, a token embedder that is not shared with a
# decoder may lie within the encoder.
_OURS = {
    PROJECTION: 'projection/kernel',
    f'encoder/{EMBEDDING}': EMBEDDING,
}
_FOLDER = re.compile(r'checkpoint_(\d+)')
_STATISTIC = re.compile(r'state/param_states/(.+)/(\w+)')
_LAYER = (
    r'(attention/(query|key|value|out)|mlp/(wi|wi_0|wi_1|wo))/kernel'
    r'|pre_(attention|mlp)_layer_norm/scale|relpos_bias/rel_embedding'
)
_ENCODER = re.compile(
    r'(passage_)?encoder/(encoder_norm/scale|relpos_bias/rel_embedding'
    rf'|(layers_\d+|layers|encoder)/({_LAYER}))'
)


def is_one(path: str | os.PathLike[str]) -> bool:
  """Whether it is a checkpoint of T5X, its `state`, or a folder of such."""
  path = epath.Path(path)
  return _tree_folder(path) is not None or any(
      _tree_folder(folder) for folder in _numbered(path).values()
  )


def read(path: str | os.PathLike[str]) -> Weights:
  """The parameters of an encoder, read lazily; those of a decoder are left out.

  Args:
    path: `checkpoint_1000`, its item `state`, or a folder that holds such
      checkpoints, of which the newest is read; local or gs://.

  Raises:
    UserError: it is no such checkpoint, is damaged, or holds another model.
  """
  path, folder = _newest(epath.Path(path))
  orbax = zarr_files.is_tree(folder)
  tree = (zarr_files if orbax else t5x_legacy).read_tree(folder)
  found = {
      name.removeprefix('target/'): tensor
      for name, tensor in tree.items()
      if name.startswith('target/')
  }
  names = {
      name: _OURS.get(name, name)
      for name in found
      if not name.startswith('decoder/')
  }
  given = {ours: found[name] for name, ours in names.items()}
  _check_family(given, names, f'{path} ({KIND})')
  loss = {n: t for n, t in given.items() if n.startswith('loss/')}
  tensors = t5x_layers.one_by_one(
      {n: t for n, t in given.items() if n not in loss}, _widths(given)
  )
  # Statistics of stacked layers were taken over all of them at once.
  whole = {n: o for n, o in names.items() if given[o] is tensors.get(o)}
  optimizer, others = _optimizer(tree, whole, found.keys(), str(path))
  decoder = {
      f'target/{name}': 'head' if '/logits_dense/' in name else 'decoder'
      for name in found.keys() - names.keys()
  }
  own_encoder = any(name.startswith('passage_encoder/') for name in tensors)
  step = tree.get('state/step')
  return Weights(
      f'{KIND} ({"Orbax" if orbax else "legacy"})',
      str(path),
      tensors,
      infer_encoder(tensors),
      infer_encoder(tensors, None, 'passage_encoder') if own_encoder else None,
      left_out=decoder | others,
      loss=loss,
      optimizer=optimizer,
      step=None if step is None else int(step.read()),
  ).check()


def _newest(path: epath.Path) -> tuple[epath.Path, epath.Path]:
  """A checkpoint, or the newest of those in a folder, and where its tree is."""
  try:
    folder = _tree_folder(path)
    if folder is None:
      path = max(_numbered(path).items(), default=(0, path))[1]
      folder = _tree_folder(path)
  except Exception as e:  # Those who read gs:// have errors of their own.
    raise UserError(
        f'{path} cannot be reached: {zarr_files.first_line(e)}. gs:// needs a'
        ' network, your credentials, and either tensorflow or gcsfs; or copy'
        ' the folder to this machine.'
    ) from e
  if folder is None:
    raise UserError(
        f'{path} is no {KIND}: expected a msgpack file "{t5x_legacy.FILE}"'
        ' beside folders target.*, or the Orbax item "state". Give the folder'
        ' checkpoint_<step>, with all of its files.'
    )
  return path, folder


def _numbered(path: epath.Path) -> dict[int, epath.Path]:
  """The folders `checkpoint_<step>` in a folder, by step."""
  if not path.is_dir():
    return {}
  return {
      int(match[1]): folder
      for folder in path.iterdir()
      if (match := _FOLDER.fullmatch(folder.name))
  }


def _tree_folder(path: epath.Path) -> epath.Path | None:
  """Where a checkpoint has its tree; None if it is not one of T5X."""
  for folder in (path, path / 'state'):
    if zarr_files.is_tree(folder):
      return folder if zarr_files.has_key(folder, 'target') else None
    if t5x_legacy.is_tree(folder):
      return folder
  return None


def _check_family(
    tensors: Mapping[str, Tensor], names: Mapping[str, str], what: str
) -> None:
  """Raises UserError unless the names are those of a T5, each there once."""
  if EMBEDDING not in tensors:
    parts = sorted({name.split('/')[0] for name in tensors})
    raise UserError(
        f'{what} has no token embeddings (target/{EMBEDDING}); it holds'
        f' {", ".join(parts) or "a decoder at most"}. Give a T5, an mT5 or a'
        ' dual encoder of t5x_retrieval.'
    )
  twice = [n for n, ours in names.items() if n != ours and ours in names]
  if twice:
    raise UserError(
        f'{what} has both {twice[0]} and {names[twice[0]]}, which mean the'
        ' same. Give a checkpoint with one of them.'
    )
  strange = sorted(
      name
      for name in tensors
      if re.match('(passage_)?encoder/', name) and not _ENCODER.fullmatch(name)
  )
  if strange:
    more = f' and {len(strange) - 3} more' if len(strange) > 3 else ''
    raise UserError(
        f'{what} is of another architecture than T5: it has'
        f' {", ".join(strange[:3])}{more}. Fused kernels, prompts, experts and'
        ' global attention cannot be read.'
    )


def _widths(tensors: Mapping[str, Tensor]) -> dict[str, int]:
  own = tensors.get(f'passage_{EMBEDDING}', tensors[EMBEDDING])
  return {
      'encoder': tensors[EMBEDDING].shape[-1],
      'passage_encoder': own.shape[-1],
  }


def _optimizer(
    tree: Mapping[str, Tensor | None],
    names: Mapping[str, str],
    parameters: Collection[str],
    where: str,
) -> tuple[dict[str, Tensor], dict[str, str]]:
  """Adafactor's statistics by our names; the rest of the tree, with reasons."""
  statistics, left_out = {}, {}
  for path, tensor in tree.items():
    match = _STATISTIC.fullmatch(path)
    if match and match[1] not in parameters:
      raise UserError(
          f'{where}: {path} belongs to a parameter that is not there,'
          f' target/{match[1]}. Give the whole checkpoint.'
      )
    if match and match[1] in names and tensor is not None:
      statistics[f'{names[match[1]]}/{match[2]}'] = tensor
    elif not path.startswith('target/') and path != 'state/step':
      part = path.split('/')[0]
      left_out[path] = 'optimizer' if part == 'state' else part
  return statistics, left_out
