"""The assignment of a checkpoint's tensors to the parameters of a model."""

from collections.abc import Mapping, Sequence
import re

from dualenc_jax.checkpoints.weights import list_first, Weights
from dualenc_jax.utils.errors import did_you_mean, UserError
from dualenc_jax.utils.tensor_files.tensors import Tensor

RULES = 'INITIAL_CHECKPOINT_RULES'
DROP = 'INITIAL_CHECKPOINT_DROP'
Rule = tuple[str, str | None]


def assign(
    shapes: Mapping[str, tuple[int, ...]], weights: Weights,
    rules: Sequence[Rule] = (), drop: Sequence[str] = (),
) -> dict[str, str | None]:
  """Assigns every parameter a tensor of the checkpoint, or a fresh start.

  A parameter takes the first that exists: the tensor of the first rule that
  matches its whole name; the tensor of its name; for a part of the passage
  tower of which the checkpoint has only one, that one. The projection, the
  parameters of the loss, a codec, and the head of a cross-encoder start fresh
  where the checkpoint has none.

  Args:
    shapes: of the parameters, by name, one for each layer.
    weights: the checkpoint.
    rules: pairs of a regular expression over names of parameters, and the name
      in the checkpoint, with groups as in `re.sub`; None starts fresh.
    drop: regular expressions over names in the checkpoint to leave out.

  Returns:
    {parameter: name in the checkpoint, None for a fresh start}.

  Raises:
    UserError: a rule matches nothing or names no tensor, a parameter has no
      tensor, a tensor has no parameter or another shape.
  """
  tensors = {**weights.tensors, **weights.loss}
  given = _apply_rules(shapes, tensors, weights.path, rules)
  sources: dict[str, str | None] = {}
  missing = []
  for name in shapes:
    if name in given:
      sources[name] = given[name]
    elif (source := _default_source(name, weights)) in tensors:
      sources[name] = source
    elif _may_start_fresh(name, weights):
      sources[name] = None
    else:
      missing.append(name)
  if missing:
    raise UserError(
        f'{weights} has nothing for {list_first(missing)}. It has:'
        f' {_summarize(tensors)}. Give the tensors that these start from, or'
        f" None to start fresh, --gin.{RULES}=\"(('NAME', 'NAME THERE'),)\"."
    )
  dropped = _match_drops(tensors, weights.path, drop)
  for name, start in sources.items():
    if start in dropped:
      raise UserError(
          f'{DROP} leaves out {start}, from which {name} starts. To start it'
          f' fresh, give --gin.{RULES}="((\'{name}\', None),)".'
      )
  wanted = {*sources.values(), *dropped, *weights.loss}
  if left := [name for name in tensors if name not in wanted]:
    raise UserError(
        f'This model has no place for {list_first(left)} of {weights}. Give its'
        ' architecture and size, or leave them out,'
        f' --gin.{DROP}="({_propose_drops(left)},)".'
    )
  for name, start in sources.items():
    if start and tensors[start].shape != shapes[name]:
      hint = 'Give its model size, as --gin_file=models/....gin'
      if name.endswith('token_embedder/embedding'):
        hint = 'Set VOCAB_SIZE and the model size to those of the checkpoint'
      raise UserError(
          f'{tensors[start].where} has the shape {tensors[start].shape};'
          f' {name} of this model has {shapes[name]}. {hint}.'
      )
  return sources


def _apply_rules(
    shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Tensor],
    path: str, rules: Sequence[Rule],
) -> dict[str, str | None]:
  given: dict[str, str | None] = {}
  for rule in rules:
    if isinstance(rule, str) or len(rule) != 2:
      raise UserError(
          f'{RULES} holds {rule!r}; expected pairs of an expression and a name,'
          r" (('passage_encoder/(.*)', r'encoder/\1'),)."
      )
    pattern, template = rule
    compiled = _compile(RULES, pattern)
    matches = [m for name in shapes if (m := compiled.fullmatch(name))]
    if not matches:
      raise UserError(
          f'{RULES}: {pattern!r} matches no parameter of this model. A rule'
          f' must match the whole name, such as {list_first(shapes)}.'
      )
    for match in matches:
      try:
        source = None if template is None else match.expand(template)
      except (re.error, IndexError) as e:
        raise UserError(f'{RULES}: {template!r} is wrong: {e}.') from e
      if source is not None and source not in tensors:
        raise UserError(
            f'{RULES}: {pattern!r} sends {match[0]} to {source}, which is not'
            f' in {path}.{did_you_mean(source, tensors)}'
        )
      given.setdefault(match[0], source)
  return given


def _default_source(name: str, weights: Weights) -> str:
  part = name.split('/')[0]
  has_own = any(t.startswith(f'{part}/') for t in weights.tensors)
  if part.startswith('passage_') and not has_own:
    return name.removeprefix('passage_')
  return name


def _may_start_fresh(name: str, weights: Weights) -> bool:
  part = name.split('/')[0].removeprefix('passage_')
  if part == 'projection':
    return not weights.has_projection
  return part in ('loss', 'head', 'codec')


def _match_drops(
    tensors: Mapping[str, Tensor], path: str, drop: Sequence[str]
) -> set[str]:
  dropped: set[str] = set()
  if isinstance(drop, str):
    raise UserError(f'{DROP} is {drop!r}; expected several, ({drop!r},).')
  for pattern in drop:
    compiled = _compile(DROP, pattern)
    matches = {name for name in tensors if compiled.fullmatch(name)}
    if not matches:
      raise UserError(
          f'{DROP}: {pattern!r} matches no tensor of {path}, which has'
          f' {_summarize(tensors)}.'
      )
    dropped |= matches
  return dropped


def _compile(name: str, pattern: str) -> re.Pattern:
  try:
    return re.compile(pattern)
  except (re.error, TypeError) as e:
    raise UserError(
        f'{name}: {pattern!r} is not a regular expression: {e}.'
    ) from e


def _summarize(names) -> str:
  """How many tensors each part has: 'encoder (98), projection (1)'."""
  parts = [name.split('/')[0] for name in names]
  return ', '.join(f'{p} ({parts.count(p)})' for p in dict.fromkeys(parts))


def _propose_drops(names: Sequence[str]) -> str:
  """Expressions that match all of some names, a part or its layers each."""
  layers: dict[str, dict[str, None]] = {}
  for name in names:
    part, _, rest = name.partition('/')
    layer, _, _ = rest.partition('/')
    number = layer.removeprefix('layers_')
    layers.setdefault(part, {})['' if number == layer else number] = None
  patterns = [
      f'{part}/.*' if '' in numbers else
      f'{part}/layers_({"|".join(numbers)})/.*'
      for part, numbers in layers.items()
  ]
  return ', '.join(map(repr, patterns))
