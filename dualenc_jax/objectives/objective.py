"""What a run knows of that which it trains."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import sys
from typing import Any, Protocol

import jax

from dualenc_jax.data.cache import Cache
from dualenc_jax.data.columns import Column
from dualenc_jax.errors import UserError
from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.text.tokenizer import Tokenizer, Vocabulary


class Batches(Protocol):
  """Global batches by step, each a pure function of data, seed and step.

  Attributes:
    cells: equal parts of every array's leading axis, a multiple of the devices
      on the data axis; a host feeds some of them.
    shapes: of the batches, as many as programs are compiled at most.
  """

  cells: int
  shapes: Sequence[Any]

  def __call__(self, step: int, cells: Any = slice(None)) -> Any:
    """The cells, a slice or numbers, of the batch of a step; host arrays."""


class Run(Protocol):
  """What batches are made from: the part of `run.Experiment` that all share.

  Attributes:
    tokenizer: vocabulary and lengths.
    partitioner: the mesh.
    batch_size: B, examples in the global batch.
    seed: of the order of the examples.
    caches: token caches of the training split, one for each part of a mixture;
      they are built when first asked for.
    corpora: likewise of the passages that these queries are ranked over, of the
      parts that have such.
    rates: share of each cache; None for one cache.
    extra_columns: what a training batch has beside the columns of every
      dataset.
    batches: `Objective.batches` of this run, made when first asked for.
  """

  tokenizer: Tokenizer
  partitioner: Partitioner
  batch_size: int
  seed: int
  caches: Sequence[Cache]
  corpora: Sequence[Cache]
  rates: Sequence[float] | None
  extra_columns: Sequence[Column]
  batches: Batches


class Objective(Protocol):
  """What is trained: parameters, batches, and the value of a batch.

  A class that derives from this needs the first four methods alone.

  Attributes:
    needs_start: what it trains learns from what is trained already, so that a
      run from scratch has no sense.
  """

  needs_start: bool = False

  def init(self, key: jax.Array) -> Any:
    """Fresh parameters, in Flax's boxes of logical axes or bare."""

  def __call__(
      self, params: Any, batch: Any, key: jax.Array | None = None
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The value of a global batch, to be minimised.

    Args:
      params: what `init` returned without boxes, as trained so far.
      batch: of `batches`, on the mesh. The train step gives a mapping `step`,
        too, int32 [], the steps taken so far.
      key: of dropout; None for none.

    Returns:
      The value, float32 [], and metrics, float32 [], `loss` among them.
    """

  @property
  def frozen(self) -> Sequence[str]:
    """Parameters that it never trains, as `Optimizer.freeze` has them."""
    return ()

  def memory(self, run: Run) -> Any:
    """What steps read and change beside the parameters, abstract; () of most.

    It is saved with every checkpoint. Leading axes go over the data axis.
    """
    del run
    return ()

  def fill(self, run: Run, params: Any) -> Any:
    """`memory` on the mesh, as the first step is to find it."""
    del run, params
    return ()

  def step(
      self, params: Any, memory: Any, batch: Any, key: jax.Array | None
  ) -> tuple[jax.Array, dict[str, jax.Array], Any]:
    """The value and the metrics of a batch, and the memory after it."""
    value, metrics = self(params, batch, key)
    return value, metrics, memory

  def constants(self, run: Run, params: Any) -> Mapping[str, Any]:
    """What every batch of a run has beside what `batches` makes.

    It is made once, before the first step of a process, and stays on the mesh;
    leading axes go over the data axis.

    Args:
      run: whose.
      params: that the run starts from, or goes on with.
    """
    del run, params
    return {}

  def completion(self, run: Run) -> Callable[[Any, Any], Any] | None:
    """What completes a batch before its step; None of most.

    It is made once, before the first step of a process. For what neither data
    nor a step can tell: what a host finds out by the parameters of now.

    Returns:
      A function of the parameters and of a batch with its constants, both on
      the mesh, that gives the batch with more in it.
    """
    del run

  def batches(self, run: Run) -> Batches:
    """The training batches.

    Raises:
      UserError: the run cannot be fed from these examples.
    """

  def abstract_batch(self, run: Run) -> Any:
    """A usual batch as steps find it, ShapeDtypeStruct in place of arrays."""

  def check_vocabulary(self, vocabulary: Vocabulary) -> None:
    """Raises UserError unless it is the model's; called as a run is made."""

  def check_mesh(self, partitioner: Partitioner) -> None:
    """Raises UserError unless the model divides among the devices."""

  def check_batch(self, run: Run) -> None:
    """Raises UserError unless a batch divides among the devices.

    Only training needs that: a model is evaluated on whatever mesh there is.
    """
    run.partitioner.check_batch_size('BATCH_SIZE', run.batch_size)

  def batch_sizes(self, run: Run) -> range:
    """Sizes that the global batch could have, ascending."""
    unit = run.partitioner.mesh.shape['data']
    return range(unit, sys.maxsize, unit)

  def describe(self, run: Run) -> Iterator[str]:
    """Lines on what is trained, before the examples are tokenised."""
    yield f'Global batch: {run.batch_size}.'

  def describe_batches(self, run: Run, step: int) -> Iterator[str]:
    """Lines on the batches from `step` on.

    Raises:
      UserError: nothing can be learnt from them.
    """
    del run, step
    yield from ()

  def chance(self, run: Run) -> float | None:
    """The loss of a model that knows nothing, where that can be said."""
    del run

  def problem(self, metrics: Mapping[str, Any]) -> str | None:
    """What is wrong with a run by metrics of a step; it is stopped for that."""
    del metrics

  @property
  def facts(self) -> dict[str, Any]:
    """What the tensors of a model do not say, as `interop.own` reads it; JSON.

    It is saved with every checkpoint.
    """
    return {}

  def apart(
      self, params: Any, batch: Any
  ) -> tuple[Callable[..., Any], Any, Any, Any] | None:
    """A part of the value whose memory is reported by itself; None without one.

    Args:
      params: abstract.
      batch: abstract.

    Returns:
      A function of (params, rows, rest) -> (value, metrics), which has
      gradients for the first two; and these, abstract: parameters of its own,
      and trees of arrays whose leading axis goes over the data axis.
    """
    del params, batch


def check(name: str, objective: Any) -> None:
  """Raises UserError, with the name of the setting, for what is none."""
  if isinstance(objective, type) or not hasattr(objective, 'abstract_batch'):
    raise UserError(
        f'{name} is {objective!r}; expected an object such as, in gin,'
        ' OBJECTIVE = @objectives.Contrastive().'
    )


def check_whole(name: str, value: Any, least: int) -> None:
  """Raises UserError for what is no whole number, or one below `least`."""
  if type(value) is not int:
    raise UserError(f'{name} is {value!r}; expected a whole number.')
  if value < least:
    expected = f'at least {least}' if least else '0 or more'
    raise UserError(f'{name} is {value}; expected {expected}.')
