"""LoRA: adapters of rank r beside the kernels of a model that stays as it is.

A kernel W [E, F] becomes W + alpha / r A B, with A [E, r] and B [r, F] (Hu et
al., 2021). `models.layers.Dense` adds alpha / r (x A) B to x W, so that no
gradient of W is computed. B starts at zero, so that the model starts as its
base.
"""

from collections.abc import Callable, Collection, Mapping
import dataclasses
import math
from typing import Any

from flax import linen as nn, traverse_util
import jax
import jax.numpy as jnp
import optax

from dualenc_jax.checkpoints.adapters import GROUP
from dualenc_jax.models import layers
from dualenc_jax.parallel import partitioning
from dualenc_jax.utils.errors import check_whole, expect, UserError

# Parts that are trained in full: heads are small, and often start fresh.
_HEADS = ('projection', 'passage_projection', 'head', 'loss', 'codec')
# The default of `Lora.targets`.
_TARGETS = '.*/(query|value|wi|wi_0|wi_1|wo)/kernel'
_Flat = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Lora:
  """The adapters of a run.

  Attributes:
    rank: r; None trains the whole model, without adapters.
    alpha: A B is multiplied by alpha / r; None for r, a factor of one.
    dropout: of the input of A, one mask for all tokens of a text.
    targets: a regular expression over whole paths of kernels; None for those
      of queries, values and feed-forward blocks. Kernels that FREEZE matches
      have no adapter.
  """

  rank: int | None = None
  alpha: float | None = None
  dropout: float = 0.0
  targets: str | None = None

  def __post_init__(self):
    if self.rank is not None:
      check_whole('Lora.rank (LORA_RANK)', self.rank, 1)
    expect(
        self.alpha is None or 0 < self.alpha < math.inf,
        'Lora.alpha (LORA_ALPHA)', self.alpha, 'a number above 0, or None',
    )
    expect(
        0.0 <= self.dropout < 1.0, 'Lora.dropout (LORA_DROPOUT)', self.dropout,
        'a value from 0 up to, not including, 1',
    )

  @property
  def factor(self) -> float:
    """Returns alpha / r."""
    assert self.rank is not None
    return 1.0 if self.alpha is None else self.alpha / self.rank

  def split(
      self, init: Callable[[], Any], whole: Any, frozen: Collection[str]
  ) -> tuple[Any, Any]:
    """Splits abstract parameters in those that stay and those that train.

    Args:
      init: traces the parameters.
      whole: the same, abstract, in boxes of logical axes.
      frozen: paths of parameters that are never trained.

    Returns:
      The base; and heads, with the adapters under 'lora'. Both have boxes.

    Raises:
      UserError: the targets match no kernel, or something else.
    """
    flat = _flatten(whole)
    targets = self._targets(flat, _dense_kernels(init), frozen)
    # Parameters of the loss and a codec are in no checkpoint of a base.
    trained = {
        path: leaf
        for path, leaf in flat.items()
        if path.split('/')[0] in _HEADS
        and (path not in frozen or path.startswith(('loss/', 'codec/')))
    }
    base = {path: leaf for path, leaf in flat.items() if path not in trained}
    assert self.rank is not None
    for path in targets:
      for name, box in layers.box_adapter(flat[path], self.rank).items():
        trained[f'{GROUP}/{path.removesuffix("kernel")}{name}'] = box
    return _unflatten(base), _unflatten(trained)

  def _targets(
      self, flat: Mapping[str, Any], kernels: Collection[str],
      frozen: Collection[str],
  ) -> list[str]:
    pattern, name = self.targets or _TARGETS, 'LORA_TARGETS'
    matched = partitioning.match_rules(name, [(pattern, True)], [*flat])
    for path in matched:
      if path not in kernels:
        kind = 'no kernel of an encoder or a decoder'
        if flat[path].names[0] == 'vocab':
          kind = 'an embedding table'
        elif path.split('/')[0] in _HEADS:
          kind = 'which is trained in full'
        raise UserError(
            f'{name} {pattern!r} matches {path}, {kind}. Expected kernels'
            ' of attention and feed-forward blocks alone, such as'
            f' {min(kernels, default="those of a T5")}.'
        )
    if not set(matched) - set(frozen):
      raise UserError(
          f'{name} {pattern!r} matches frozen parameters alone, such as'
          f' {min(matched)}. Expected some that FREEZE does not match.'
      )
    return sorted(set(matched) - set(frozen))

  def check_optimizer(self, transform: optax.GradientTransformation) -> None:
    """Raises UserError if its steps are in proportion to the parameter.

    B, which starts at zero, would hardly move.
    """

    @jax.jit
    def step(size: float) -> jax.Array:
      """Returns the second step, as the first may have a rate of zero."""
      param = {'b': jnp.full((2, 2), size)}
      state = transform.init(param)
      for _ in range(2):
        update, state = transform.update(
            jax.tree.map(jnp.ones_like, param), state, param
        )
      return jnp.max(jnp.abs(update['b']))

    if step(0.0) < 0.01 * step(1.0):
      raise UserError(
          'OPTIMIZER takes steps in proportion to a parameter, as Adafactor'
          ' does, but adapters of LORA_RANK start at zero, and would hardly'
          ' move. Give --gin_file=optimizers/adamw.gin, or'
          ' --gin.optax.adafactor.multiply_by_parameter_scale=False.'
      )

  def init(self, key: jax.Array, whole: Any, trained: Any) -> Any:
    """Returns the first trained parameters.

    A is uniform within 1 / sqrt(E), as in PEFT, and B zero.

    Args:
      key: of the adapters.
      whole: fresh parameters of the model, whose heads are taken.
      trained: the abstract result.
    """
    flat, start = _flatten(trained), _flatten(whole)
    for number, (path, leaf) in enumerate(sorted(flat.items())):
      if path in start:
        flat[path] = start[path]
      elif path.endswith(layers.ADAPTER[1]):
        flat[path] = jnp.zeros(leaf.shape, leaf.dtype)
      else:
        bound = leaf.shape[-2] ** -0.5
        flat[path] = jax.random.uniform(
            jax.random.fold_in(key, number), leaf.shape, leaf.dtype, -bound,
            bound,
        )
    return _unflatten(flat)

  def combine(self, base: Any, trained: Any) -> Any:
    """Returns the parameters of the whole model, which share all but B.

    Adapters lie beside their kernels; B is multiplied by alpha / r, unless it
    is abstract.
    """
    flat = _flatten(base)
    for path, leaf in _flatten(trained).items():
      if path.endswith(layers.ADAPTER[1]) and not isinstance(
          leaf, jax.ShapeDtypeStruct
      ):
        leaf = leaf * self.factor
      flat[path.removeprefix(f'{GROUP}/')] = leaf
    return _unflatten(flat)

  def describe(self, abstract: Any) -> str:
    """Returns a line on a state: adapters, heads, base."""
    heads = {n: x for n, x in abstract.params.items() if n != GROUP}
    adapters = abstract.params[GROUP]
    count = len(jax.tree.leaves(adapters)) // 2
    return (
        f'LoRA: rank {self.rank}, alpha / rank {self.factor:g}, dropout'
        f' {self.dropout:g}: adapters of {count} kernels,'
        f' {_count(adapters):,} parameters. Trained in full:'
        f' {", ".join(heads) or "nothing"}, {_count(heads):,}. Frozen: a base'
        f' of {_count(abstract.base):,}.'
    )


def _dense_kernels(init: Callable[[], Any]) -> set[str]:
  """Paths of the kernels of `Dense`, which alone knows adapters.

  The kernel of a head over a vocabulary is read elsewhere, too.
  """
  paths = set()

  def note(call, args, kwargs, context):
    module = context.module
    if isinstance(module, layers.Dense) and 'vocab' not in module.kernel_axes:
      paths.add('/'.join((*module.path, 'kernel')))
    return call(*args, **kwargs)

  with nn.intercept_methods(note):
    jax.eval_shape(init)
  return paths


def _count(tree: Any) -> int:
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def _flatten(tree: Any) -> _Flat:
  return traverse_util.flatten_dict(tree, sep='/')


def _unflatten(flat: Mapping[str, Any]) -> Any:
  return traverse_util.unflatten_dict(flat, sep='/')
