"""The device mesh, the placement of arrays on it, and rules over parameters."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import difflib
import functools
import pathlib
import re
from typing import Any

from flax import linen as nn
import jax
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np

from dualenc_jax.parallel import data_axis, ring_order
from dualenc_jax.utils.errors import expect, UserError

# Logical axes as in T5X. `embed` is E in parameters, `activation_embed` in
# activations, so that FSDP can shard the one and not the other.
STANDARD_RULES = (
    ('batch', 'data'), ('vocab', 'model'), ('heads', 'model'),
    ('joined_kv', 'model'), ('mlp', 'model'), ('embed', None),
    ('activation_embed', None), ('kv', None), ('length', None),
    ('layers', None), ('relpos_buckets', None), ('embedding_dim', None),
    ('texts', None),
)


@dataclasses.dataclass(frozen=True)
class Partitioner:
  """A mesh of `data` x `model` axes and the logical axis rules over it.

  Attributes:
    model_parallel: devices on the model axis; the rest is the data axis.
    rules: pairs of logical and mesh axis, None for replicated. They precede
      `STANDARD_RULES`, which they override by name; ('embed', 'data') is FSDP.
    shard_optimizer: split optimizer state and its arithmetic over the data
      axis, too (ZeRO-1, Rajbhandari et al., 2020). Gradients are summed where
      they are used, and new parameters are gathered, which sends as much as the
      sum alone. None does so on TPUs.
    sum_dtype: the dtype in which devices sum gradients of parameters that the
      rules split over the data axis; 'bfloat16' sends half as much. On slices
      of TPUs sums go along one line of chips after the other.
  """

  model_parallel: int = 1
  rules: Sequence[tuple[str, str | None]] = ()
  shard_optimizer: bool | None = None
  sum_dtype: str = 'float32'

  def __post_init__(self):
    expect(
        self.sum_dtype in ('float32', 'bfloat16'), 'Partitioner.sum_dtype',
        self.sum_dtype, "'float32' or 'bfloat16'",
    )

  def devices(self) -> Sequence[jax.Device]:
    """Returns all devices of all hosts."""
    return jax.devices()

  @functools.cached_property
  def mesh(self) -> jax.sharding.Mesh:
    """All devices, [data, model]."""
    check_gpu_is_used()
    devices = self.devices()
    expect(
        self.model_parallel >= 1 and len(devices) % self.model_parallel == 0,
        'MODEL_PARALLEL', self.model_parallel,
        f'a divisor of the {len(devices)} devices',
    )
    shape = len(devices) // self.model_parallel, self.model_parallel
    axes, types = ('data', 'model'), (jax.sharding.AxisType.Auto,) * 2
    split = 'data' in dict(self.rules).values()
    # JAX's own order has a ring for few shapes of machines.
    if around := ring_order.order_devices(devices, self.model_parallel, split):
      return jax.sharding.Mesh(
          np.array(around).reshape(shape), axes, axis_types=types
      )
    return jax.make_mesh(shape, axes, axis_types=types, devices=devices)

  @functools.cached_property
  def _lines(self) -> ring_order.Lines | None:
    return ring_order.data_lines(self.mesh.devices)

  @functools.cached_property
  def logical_rules(self) -> tuple[tuple[str, str | None], ...]:
    known = [name for name, _ in STANDARD_RULES]
    given = dict(self.rules)
    for name, axis in given.items():
      axes = f'one of the logical axes {", ".join(known)}'
      expect(name in known, 'An axis of Partitioner.rules', name, axes)
      expect(
          axis in (None, 'data', 'model'), f'Partitioner.rules of {name!r}',
          axis, "'data', 'model' or None",
      )
    return tuple((name, given.get(name, axis)) for name, axis in STANDARD_RULES)

  @contextlib.contextmanager
  def scope(self) -> Iterator[None]:
    """A context in which logical constraints and losses refer to this mesh."""
    mesh = jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh)
    rules = nn.logical_axis_rules(self.logical_rules)
    with mesh, rules, data_axis.use_sums(self.sum_dtype, self._lines):
      yield

  @property
  def replicated(self) -> NamedSharding:
    return NamedSharding(self.mesh, PartitionSpec())

  @property
  def rows(self) -> NamedSharding:
    """The sharding of arrays whose leading axis is over the data axis."""
    return NamedSharding(self.mesh, PartitionSpec('data'))

  def check_batch_size(self, name: str, batch_size: int) -> None:
    data = self.mesh.shape['data']
    expect(
        batch_size >= 1 and batch_size % data == 0, name, batch_size,
        f'a multiple of {data}, the devices on the data axis of the mesh',
    )

  def param_shardings(self, boxed: Any) -> Any:
    """Returns NamedShardings of parameters, in the tree of the unboxed ones.

    Args:
      boxed: abstract parameters as `model.init` returns them, leaves in Flax's
        `LogicallyPartitioned` boxes or bare (then replicated).

    Raises:
      UserError: an axis of a parameter is not divisible by its mesh axis.
    """
    specs = nn.get_partition_spec(boxed)
    rules = self.logical_rules
    shardings = nn.logical_to_mesh_sharding(specs, self.mesh, rules)
    jax.tree_util.tree_map_with_path(
        self._check_divisible, nn.unbox(boxed), specs, shardings
    )
    return shardings

  def _check_divisible(self, path, array, spec, sharding):
    for size, logical, axis in zip(array.shape, spec, sharding.spec):
      if axis is not None and size % self.mesh.shape[axis]:
        raise UserError(
            f'{path_string(path)} has the shape {array.shape}: its axis'
            f' {logical!r} of {size} is not divisible by the'
            f' {self.mesh.shape[axis]} devices on the mesh axis {axis!r}.'
            ' Change Partitioner.model_parallel or Partitioner.rules.'
        )

  def update_shardings(self, params: Any, shardings: Any) -> Any:
    """Returns the shardings with which abstract parameters are updated.

    These are `shardings` without `shard_optimizer`. With it the data axis also
    splits the longest free axis that it divides.
    """
    shard = self.shard_optimizer
    if shard is None:
      shard = self.mesh.devices.flat[0].platform == 'tpu'
    data = self.mesh.shape['data']
    if not shard or data == 1:
      return shardings

    def split(leaf, sharding):
      spec = [*sharding.spec, *[None] * (leaf.ndim - len(sharding.spec))]
      free = [
          axis
          for axis, size in enumerate(leaf.shape)
          if spec[axis] is None and size % data == 0
      ]
      if 'data' in spec or not free:
        return sharding
      spec[max(free, key=lambda axis: leaf.shape[axis])] = 'data'
      return NamedSharding(self.mesh, PartitionSpec(*spec))

    return jax.tree.map(split, params, shardings)

  def state_shardings(self, state: Any, params: Any, shardings: Any) -> Any:
    """Returns shardings of optimizer state; arguments are abstract.

    Leaves whose path ends in a parameter's path and whose shape is that
    parameter's take its sharding. The others, such as Adafactor's row and
    column statistics, are small and replicated.
    """
    by_path = {
        path_string(path): (leaf.shape, sharding)
        for (path, leaf), sharding in zip(
            jax.tree_util.tree_leaves_with_path(params),
            jax.tree.leaves(shardings),
            strict=True,
        )
    }

    def twin(path, leaf):
      for start in range(len(path)):
        shape, sharding = by_path.get(path_string(path[start:]), (None, None))
        if shape == leaf.shape:
          return sharding
      return self.replicated

    return jax.tree_util.tree_map_with_path(twin, state)

  def to_device(self, batch: Any) -> Any:
    """Returns global arrays of a tree of this host's rows."""
    return jax.tree.map(
        lambda rows: jax.make_array_from_process_local_data(self.rows, rows),
        batch,
    )

  def host_rows(self, batch_size: int) -> np.ndarray:
    """Returns numbers of the rows of a global batch that this host feeds.

    Hosts that the model axis spans feed the same rows.
    """
    local = self.rows.addressable_devices_indices_map((batch_size,)).values()
    rows = np.arange(batch_size)
    return np.unique(np.concatenate([rows[index] for index in local]))


class HostPartitioner(Partitioner):
  """A mesh of the devices of this host, which computes by itself."""

  def devices(self) -> Sequence[jax.Device]:
    return jax.local_devices()


def check_gpu_is_used() -> None:
  """Raises UserError on the CPU of a GPU machine, unless it is chosen."""
  config: Any = jax.config  # JAX adds its attributes.
  chosen = (config.jax_platforms or '').split(',')
  if has_gpu() and jax.default_backend() == 'cpu' and 'cpu' not in chosen:
    raise UserError(
        'This machine has an NVIDIA GPU but JAX sees only the CPU. Install the'
        " GPU build, pip install -e '.[gpu]', or set JAX_PLATFORMS=cpu."
    )


def has_gpu() -> bool:
  """Returns whether the machine has an NVIDIA GPU, seen by JAX or not."""
  return pathlib.Path('/dev/nvidia0').exists()


def path_string(path: tuple[Any, ...]) -> str:
  """Returns a leaf's key path as 'encoder/layers_0/mlp/wo/kernel'."""
  return jax.tree_util.keystr(path, simple=True, separator='/')


def leaf_paths(tree: Any) -> list[str]:
  """Returns paths of all leaves, in the order of `jax.tree.leaves`."""
  return [path_string(p) for p, _ in jax.tree_util.tree_leaves_with_path(tree)]


def match_rules(
    name: str, rules: Sequence[tuple[str, Any]], paths: Sequence[str]
) -> Mapping[str, Any]:
  """Returns the value of the first rule that matches, by path that has one.

  A rule is a regular expression, which must match the whole path, and a value.

  Raises:
    UserError: an expression does not compile, matches no parameter, or only
      parameters that an earlier rule matches.
  """
  values: dict[str, Any] = {}
  for pattern, value in rules:
    try:
      compiled = re.compile(pattern)
    except re.error as e:
      raise UserError(
          f'{name}: {pattern!r} is not a regular expression: {e}.'
      ) from e
    matched = [path for path in paths if compiled.fullmatch(path)]
    if not matched:
      near = difflib.get_close_matches(pattern, paths, n=3, cutoff=0.3)
      raise UserError(
          f'{name}: the rule {pattern!r} matches no parameter. A rule must'
          f" match a whole path, such as: {', '.join(near or list(paths)[:3])}."
      )
    if all(path in values for path in matched):
      raise UserError(
          f'{name}: the rule {pattern!r} has no effect: earlier rules match'
          f' all that it matches, such as {matched[0]}. Put it before them.'
      )
    for path in matched:
      values.setdefault(path, value)
  return values
