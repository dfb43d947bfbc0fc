"""A recipe's own names of macros of its stages, such as ALIGNMENT_STEPS."""

from collections.abc import Collection, Iterator, Mapping
import re

from dualenc_jax.pipelines.recipes import Stage


def of_stages(text: str) -> dict[str, list[str]]:
  """The macros of a recipe, by those that they set in stages."""
  found: dict[str, list[str]] = {}
  for name, macro in re.findall(r"'gin\.([\w.]+)': %(\w+)", text):
    found.setdefault(name, []).append(macro)
  return found


def hint(name: str, text: str) -> str:
  """A sentence on how a macro of training is given to a recipe."""
  if own := of_stages(text).get(name):
    return f' This recipe calls it {" or ".join(dict.fromkeys(own))}.'
  return (
      ' Give it to a stage: --gin.STAGE/recipes.Stage.overrides='
      f'"{{\'gin.{name}\': VALUE}}".'
  )


def explain(
    stages: Mapping[str, Stage], failed: Collection[str], names: Collection[str]
) -> Iterator[str]:
  """Yields what the macros are called that the errors of stages name.

  The stages are of a recipe that has '{NAME}' in place of the macros `names`.
  """
  named = [f'{{{name}}}' for name in names]
  for name, stage in stages.items():
    found = {
        flag.removeprefix('gin.'): value[1:-1]
        for flag, value in stage.flags.items()
        if flag.startswith('gin.') and value in named
    }
    words = [f'{a} is {b}' for a, b in found.items() if a != b]
    if name in failed and words:
      yield (
          f'In this recipe, of stage {name}: {", ".join(words)}. Give, for'
          f' example, --gin.{words[0].split()[-1]}=VALUE.'
      )
