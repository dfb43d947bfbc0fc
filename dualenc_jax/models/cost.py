"""Parameters of the towers of a dual encoder, and FLOP of a text."""

from collections.abc import Iterator

import jax

from dualenc_jax.models.dual_encoder import (
  abstract_params,
  DualEncoder,
  PARTS,
  tower,
)


def describe_towers(
    model: DualEncoder, query: int, passage: int
) -> Iterator[str]:
  """Yields a line a tower: layers, parameters, FLOP of a text so long."""
  params = abstract_params(model)
  yield _describe_tower(model, params, 'query', query)
  yield _describe_tower(model, params, 'passage', passage)


def _describe_tower(model, params, side: str, tokens: int) -> str:
  count, shared = 0, 0
  for part in PARTS:
    own = f'passage_{part}'
    name = own if side == 'passage' and own in params else part
    size = sum(x.size for x in jax.tree.leaves(params[name]))
    count += size
    shared += 0 if own in params else size
  of_both = 'all' if shared == count else f'{shared:,}'
  layers = tower(model, side)[1].num_layers
  return (
      f'{side.capitalize()} tower: {layers} layer{"s" * (layers != 1)},'
      f' {count:,} parameters, {of_both} of them shared; a {side} of {tokens}'
      f' tokens costs {flops(model, side, tokens) / 1e9:.3g} GFLOP.'
  )


def flops(model: DualEncoder, side: str, tokens: int) -> float:
  """Floating-point operations of the matrix products of a text.

  With L tokens, H*K the joined heads, F the MLP's hidden axis and G = 2 for the
  gated MLP, else 1,

    layers * (2 L (4 E H K + (G + 1) E F) + 4 L^2 H K) + 2 E D.
  """
  embedder, encoder, projection = tower(model, side)
  features = embedder.features
  joined = encoder.num_heads * encoder.head_dim
  mlp = (len(encoder.activations) + 1) * features * encoder.mlp_dim
  token = 2 * (4 * features * joined + mlp) + 4 * tokens * joined
  layers = encoder.num_layers * tokens * token
  return layers + 2 * features * projection.features
