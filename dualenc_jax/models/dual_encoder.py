"""The dual encoder: two towers that may share parts.

Shapes: R rows, S texts a row, L tokens, E model dim, D embedding dim.
"""

from collections.abc import Iterator, Sequence
import itertools
from typing import Any

from flax import linen as nn, traverse_util
import jax
import jax.numpy as jnp

from dualenc_jax.models import layers
from dualenc_jax.models.gemma_encoder import GemmaEncoder
from dualenc_jax.models.layers import Segments
from dualenc_jax.models.t5_encoder import T5Encoder
from dualenc_jax.utils.errors import expect, UserError
from dualenc_jax.utils.memo import keep_by_value

PAD = 0
# Parameters that are no part of the towers.
NON_MODEL_PARAMS = 'loss', 'codec'
PARTS = 'token_embedder', 'encoder', 'projection'


def mean_pool(x: jax.Array, lengths: jax.Array) -> jax.Array:
  """Means over texts in float32: [R, L, E], int32 [R, S] -> [R, S, E].

  The texts of a row lie one after the other from its start; one without tokens
  pools to zero.
  """
  x = x.astype(jnp.float32)
  members = Segments.from_lengths(x.shape[1], lengths).members()
  if lengths.shape[1] == 1:
    # The compiler fuses a sum with the operations before it.
    total = jnp.sum(x * members, axis=1, keepdims=True)
  else:
    total = jnp.einsum('rls,rle->rse', members, x, precision='highest')
  return total / jnp.maximum(lengths, 1).astype(jnp.float32)[:, :, None]


def take_places(x: jax.Array, places: jax.Array) -> jax.Array:
  """Texts of segments: [R, S, D], int32 [c, T] -> [c, T, D].

  A place is the number of a segment among those of its R / c rows.
  """
  segments = x.reshape(len(places), -1, x.shape[-1])
  return jnp.take_along_axis(segments, places[:, :, None], axis=1, mode='clip')


def l2_normalize(x: jax.Array, epsilon: float = 1e-12) -> jax.Array:
  """Scales float32 [..., D] to length one; a zero row stays zero."""
  square = jnp.sum(jnp.square(x), axis=-1, keepdims=True)
  return x * jax.lax.rsqrt(jnp.maximum(square, epsilon))


def model_params(params: Any) -> Any:
  """The trained parameters without those of the loss and of a codec."""
  return {n: tree for n, tree in params.items() if n not in NON_MODEL_PARAMS}


def row_lengths(
    tokens: jax.Array, numbers: jax.Array | None
) -> tuple[jax.Array, jax.Array | None]:
  """Lengths and numbers [R, 1] of texts with a row each.

  Tokens are int32 [R, L], padded with 0; numbers [R] or None, which stays None.
  """
  lengths = jnp.sum(tokens != PAD, axis=1, keepdims=True)
  return lengths, None if numbers is None else numbers[:, None]


def abstract_params(model: nn.Module, adapted: Any = None) -> Any:
  """The parameters as ShapeDtypeStruct, in their boxes of logical axes.

  The model is a dual encoder, or any other module over tokens; with parameters
  that are `adapted`, their adapters have boxes, too.
  """
  boxed = _boxed_params(model)
  if adapted is None:
    return boxed
  flat = traverse_util.flatten_dict(boxed)
  for (*where, name), leaf in traverse_util.flatten_dict(adapted).items():
    if name == layers.ADAPTER[0]:
      boxes = layers.box_adapter(flat[*where, 'kernel'], leaf.shape[-1])
      flat |= {(*where, name): box for name, box in boxes.items()}
  return traverse_util.unflatten_dict(flat)


@keep_by_value
def _boxed_params(model: nn.Module) -> Any:
  tokens = [jnp.ones((1, 2), jnp.int32)]
  if hasattr(model, 'encode_passage'):
    tokens *= 2
  return jax.eval_shape(
      lambda: model.init(jax.random.key(0), *tokens)['params']
  )


class Projection(nn.Module):
  """Linear maps [..., E] -> [..., D] without bias, in full float32.

  One map, `kernel` [E, D], or a chain of maps with nothing between them, as in
  EmbeddingGemma: `hidden_0/kernel`, `hidden_1/kernel`, ..., and then `kernel`.

  Attributes:
    features: D.
    hidden: components between the maps of a chain; () for one map.
  """

  features: int = 768
  hidden: Sequence[int] = ()

  def __post_init__(self):
    sizes = self.hidden
    expect(
        isinstance(sizes, Sequence)
        and all(type(n) is int and n > 0 for n in sizes),
        'Projection.hidden', sizes,
        'whole numbers above 0, such as (3072,), or () for one map',
    )
    super().__post_init__()

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    for i, size in enumerate(self.hidden):
      x = Projection(size, name=f'hidden_{i}')(x)
    kernel = layers.parameter(
        self, 'kernel', layers.KERNEL_INIT, (x.shape[-1], self.features),
        ('embed', 'embedding_dim'),
    )
    return jnp.dot(x, kernel, precision='highest')


class DualEncoder(nn.Module):
  """Query and passage towers of a token embedder, an encoder, a projection.

  The first three attributes are the query tower. The passage tower uses the
  same part wherever its own is None. The variants of Dong et al. (2022) differ
  in which of the last three are given:

    SDE      none: every parameter is shared.
    ADE      all three: nothing is shared.
    ADE-STE  encoder and projection: the token embedder is shared.
    ADE-FTE  all three, the token embedders frozen by the optimizer.
    ADE-SPL  token embedder and encoder: the projection is shared.

  Towers may differ in depth; with a shared projection they agree in width.
  An embedding does not depend on its batch or row mates or on padding.
  """

  token_embedder: layers.TokenEmbedder
  encoder: T5Encoder | GemmaEncoder
  projection: Projection
  passage_token_embedder: layers.TokenEmbedder | None = None
  passage_encoder: T5Encoder | GemmaEncoder | None = None
  passage_projection: Projection | None = None

  def __post_init__(self):
    query = self.token_embedder
    passage = self.passage_token_embedder or query
    shared = [
        part
        for part in ('encoder', 'projection')
        if getattr(self, f'passage_{part}') is None
    ]
    if shared and query.features != passage.features:
      missing = ' and '.join(f'passage_{part}' for part in shared)
      raise UserError(
          f'DualEncoder.token_embedder.features is {query.features} and'
          f' passage_token_embedder.features is {passage.features}, but the'
          f' towers share the {" and the ".join(shared)}, so they must agree.'
          f' Make them equal, or give {missing} too.'
      )
    own = self.passage_projection
    if own is not None and own.features != self.projection.features:
      raise UserError(
          f'DualEncoder.projection.features is {self.projection.features} and'
          f' passage_projection.features is {own.features}; expected equal'
          ' numbers, so that queries and passages can be compared.'
      )
    super().__post_init__()

  def encode_query(
      self, tokens: jax.Array, lengths: jax.Array | None = None,
      dropout_numbers: jax.Array | None = None,
      places: jax.Array | None = None,
  ) -> jax.Array:
    """Embeds queries.

    Args:
      tokens: int32 [R, L]; a row is a query, padded with 0, or several, one
        after the other.
      lengths: int32 [R, S], tokens of the queries of a row; None where every
        row is one query.
      dropout_numbers: numbers of the queries, uint32, shaped as `lengths`, or
        [R]; None switches dropout off.
      places: int32 [c, T]; of the segments of the rows, cut into c equal parts,
        those that are embedded, by number within their part. None for all,
        which takes longer where many are empty.

    Returns:
      float32 [R, S, D], or [R, D] without `lengths`, or [c, T, D] with
      `places`, of norm one; meaningless where there is no query.
    """
    return self._encode('query', tokens, lengths, dropout_numbers, places)

  def encode_passage(
      self, tokens: jax.Array, lengths: jax.Array | None = None,
      dropout_numbers: jax.Array | None = None,
      places: jax.Array | None = None,
  ) -> jax.Array:
    """Embeds passages as `encode_query` embeds queries."""
    return self._encode('passage', tokens, lengths, dropout_numbers, places)

  def pool_passage(self, tokens: jax.Array) -> jax.Array:
    """States for `project_passage`: int32 [R, L], a passage a row -> [R, E]."""
    lengths, _ = row_lengths(tokens, None)
    token_embedder, encoder, _ = tower(self, 'passage')
    pooled = mean_pool(encoder(token_embedder(tokens), lengths, None), lengths)
    return pooled[:, 0]

  def project_passage(self, pooled: jax.Array) -> jax.Array:
    """Embeddings [..., D] of norm one, of pooled states [..., E]."""
    return l2_normalize(tower(self, 'passage')[2](pooled))

  def __call__(
      self, query_tokens: jax.Array, passage_tokens: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Runs both towers, so that `init` initialises every parameter."""
    return self.encode_query(query_tokens), self.encode_passage(passage_tokens)

  def _encode(self, side, tokens, lengths, numbers, places=None):
    if lengths is None:
      return self._encode(side, tokens, *row_lengths(tokens, numbers))[:, 0]
    token_embedder, encoder, projection = tower(self, side)
    x = encoder(token_embedder(tokens), lengths, numbers)
    pooled = mean_pool(x, lengths)
    if places is not None:
      pooled = take_places(pooled, places)
    embedding = l2_normalize(projection(pooled))
    axes = ('batch', 'texts', 'embedding_dim')
    return nn.with_logical_constraint(embedding, axes)


def tower(model: DualEncoder, side: str) -> list[Any]:
  """The `PARTS` of the tower of a side, 'query' or 'passage'."""
  own = [side == 'passage' and getattr(model, f'passage_{p}') for p in PARTS]
  return [part or getattr(model, name) for name, part in zip(PARTS, own)]


def count_flops(model: DualEncoder, side: str, tokens: int) -> float:
  """Floating-point operations of the matrix products of a text of L tokens.

  With H query heads and G of keys and values, of K components, F the MLP's
  hidden axis and A activations,

    layers * (2 L (2 E (H + G) K + (A + 1) E F) + 4 L^2 H K) + 2 E D,

  where a chain of projections has the sum of such products in place of E D, and
  layers of EmbeddingGemma 2 have G and K of their own and 3 E P of a signal.
  """
  embedder, encoder, projection = tower(model, side)
  features = embedder.features
  heads, layers = encoder.num_heads, 0.0
  for i in range(encoder.num_layers):
    shared, dim = heads, encoder.head_dim
    maps = (len(encoder.activations) + 1) * features * encoder.mlp_dim
    if isinstance(encoder, GemmaEncoder):
      shared, dim = encoder.layer_heads(i)
      maps += 3 * features * encoder.signal_dim
    maps += 2 * features * (heads + shared) * dim
    layers += tokens * (2 * maps + 4 * tokens * heads * dim)
  widths = [features, *projection.hidden, projection.features]
  return layers + sum(2 * a * b for a, b in itertools.pairwise(widths))


def describe_towers(
    model: DualEncoder, query_length: int, passage_length: int
) -> Iterator[str]:
  """Yields a line a tower: layers, parameters, FLOP of a text of its length."""
  params = abstract_params(model)
  for side, tokens in (('query', query_length), ('passage', passage_length)):
    count, shared = 0, 0
    for part in PARTS:
      own = f'passage_{part}'
      name = own if side == 'passage' and own in params else part
      size = sum(x.size for x in jax.tree.leaves(params[name]))
      count += size
      shared += 0 if own in params else size
    all_or_some = 'all' if shared == count else f'{shared:,}'
    layers = tower(model, side)[1].num_layers
    gigaflops = count_flops(model, side, tokens) / 1e9
    yield (
        f'{side.capitalize()} tower: {layers} layer{"s" * (layers != 1)},'
        f' {count:,} parameters, {all_or_some} of them shared; a {side} of'
        f' {tokens} tokens costs {gigaflops:.3g} GFLOP.'
    )
