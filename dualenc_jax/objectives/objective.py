"""`Objective`, the interface between a run and what it trains."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import sys
from typing import Any, Protocol

import jax

from dualenc_jax.data.columns import Column
from dualenc_jax.data.text.tokenizer import Tokenizer, Vocabulary
from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.utils.errors import expect

# Of dropout, None for none; and the value and metrics, each float32 [].
Key = jax.Array | None
Result = tuple[jax.Array, dict[str, jax.Array]]


class Batches(Protocol):
  """Global batches by step, each a pure function of data, seed and step.

  `cells` are equal parts of every array's leading axis, a multiple of the
  devices on the data axis; a host feeds some of them. At most as many programs
  are compiled as there are `shapes`.
  """

  cells: int
  shapes: Sequence[Any]

  def __call__(self, step: int, cells: Any = slice(None)) -> Any:
    """The cells, a slice or numbers, of the batch of a step; host arrays."""


class Run(Protocol):
  """The sources of batches: what objectives see of `training.Experiment`.

  Attributes:
    caches: token caches of the training split, one for each part of a mixture,
      built when first used.
    corpora: token caches of the corpora of these queries, of the parts that
      have one.
    rates: share of each cache; None for one cache.
    extra_columns: columns of training batches beyond those of every dataset.
  """

  @property
  def tokenizer(self) -> Tokenizer: ...
  @property
  def seed(self) -> int: ...
  @property
  def partitioner(self) -> Partitioner: ...
  @property
  def batch_size(self) -> int: ...
  @property
  def caches(self) -> Sequence[Any]: ...
  @property
  def corpora(self) -> Sequence[Any]: ...
  @property
  def rates(self) -> Sequence[float] | None: ...
  @property
  def extra_columns(self) -> Sequence[Column]: ...
  @property
  def batches(self) -> Any: ...


class Objective(Protocol):
  """What is trained: parameters, batches, and the value of a batch.

  A class that derives from this needs the first four methods alone.

  Attributes:
    needs_start: whether it learns from a trained model, so that a run from
      scratch makes no sense.
  """

  needs_start: bool = False

  def init(self, key: jax.Array) -> Any:
    """Fresh parameters, in Flax's boxes of logical axes or bare."""

  def __call__(self, params: Any, batch: Any, key: Key = None) -> Result:
    """The value of a global batch, to be minimised.

    Parameters are those of `init` without boxes. The train step adds `step`,
    the steps taken so far, int32 [], to a batch that is a mapping. Without a
    key there is no dropout. The metric `loss`, float32 [], is the value unless
    it is given.
    """

  @property
  def frozen(self) -> Sequence[str]:
    """Expressions of parameters never trained, as in `Optimizer.freeze`."""
    return ()

  def memory(self, run: Run) -> Any:
    """State of steps beside the parameters, abstract; () for most.

    It is saved with every checkpoint. Leading axes go over the data axis.
    """
    return ()

  def fill(self, run: Run, params: Any) -> Any:
    """The initial `memory` on the mesh."""
    return ()

  def step(
      self, params: Any, memory: Any, batch: Any, key: Key
  ) -> tuple[jax.Array, dict[str, jax.Array], Any]:
    """The value and the metrics of a batch, and the memory after it."""
    value, metrics = self(params, batch, key)
    return value, metrics, memory

  def constants(self, run: Run, params: Any) -> Mapping[str, Any]:
    """Arrays that are the same in every batch of a run.

    They are made once, before the first step of a process, from the parameters
    then, and stay on the mesh; leading axes go over the data axis.
    """
    return {}

  def completion(self, run: Run) -> Callable[[Any, Any], Any] | None:
    """A function that completes a batch before its step; None for most.

    It is made once, before the first step of a process. It takes the present
    parameters and a batch with its constants, both on the mesh, and adds arrays
    that a host computes.
    """
    return None

  def batches(self, run: Run) -> Any:
    """The training batches; UserError if the examples are unfit."""

  def abstract_batch(self, run: Run) -> Any:
    """A usual batch of a step, ShapeDtypeStruct in place of arrays."""

  def check_vocabulary(self, vocabulary: Vocabulary) -> None:
    """Raises UserError unless the vocabulary fits the model."""

  def check_mesh(self, partitioner: Partitioner) -> None:
    """Raises UserError unless the model divides among the devices."""

  def check_batch(self, run: Run) -> None:
    """Raises UserError unless a training batch divides among the devices."""
    run.partitioner.check_batch_size('BATCH_SIZE', run.batch_size)

  def batch_sizes(self, run: Run) -> range:
    """Sizes that the global batch could have, ascending."""
    unit = run.partitioner.mesh.shape['data']
    return range(unit, sys.maxsize, unit)

  def describe(self, run: Run) -> Iterator[str]:
    """Yields lines on the objective, before the examples are tokenised."""
    yield f'Global batch: {run.batch_size}.'

  def describe_batches(self, run: Run, step: int) -> Iterator[str]:
    """Yields lines on batches from `step` on; UserError if unfit to learn."""
    yield from ()

  def chance(self, run: Run) -> float | None:
    """The loss of a model that knows nothing; None if it is not known."""
    return None

  @property
  def facts(self) -> dict[str, Any]:
    """Facts that no tensor of a model holds, as JSON for its checkpoints."""
    return {}


def check(name: str, objective: Any) -> None:
  """Raises UserError, with the name of the setting, unless it is one."""
  is_one = hasattr(objective, 'abstract_batch')
  expect(
      is_one and not isinstance(objective, type), name, objective,
      'an object such as, in gin, OBJECTIVE = @objectives.Contrastive()',
  )
