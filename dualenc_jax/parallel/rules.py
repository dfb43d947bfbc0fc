"""Regular-expression rules over parameter paths, 'encoder/.../kernel'."""

from collections.abc import Mapping, Sequence
import difflib
import re
from typing import Any

import jax

from dualenc_jax.errors import UserError


def path_string(path: Sequence[Any]) -> str:
  """'encoder/layers_0/mlp/wo/kernel' from the key path of a pytree leaf."""
  return jax.tree_util.keystr(path, simple=True, separator='/')


def leaf_paths(tree: Any) -> list[str]:
  """Paths of all leaves, in the order of `jax.tree.leaves`."""
  return [path_string(p) for p, _ in jax.tree_util.tree_leaves_with_path(tree)]


def match(
    name: str, rules: Sequence[tuple[str, Any]], paths: Sequence[str]
) -> Mapping[str, Any]:
  """Gives every path the value of the first rule that matches all of it.

  Args:
    name: what the rules are called in the config, for messages.
    rules: pairs of a regular expression and a value.
    paths: parameter paths.

  Returns:
    {path: value}, without the paths that no rule matches.

  Raises:
    UserError: an expression does not compile or matches no parameter.
  """
  values = {}
  for pattern, value in rules:
    try:
      compiled = re.compile(pattern)
    except re.error as e:
      raise UserError(
          f'{name}: {pattern!r} is no regular expression: {e}.'
      ) from e
    matched = [path for path in paths if compiled.fullmatch(path)]
    if not matched:
      near = difflib.get_close_matches(pattern, paths, n=3, cutoff=0.3)
      raise UserError(
          f'{name}: the rule {pattern!r} matches no parameter. A rule must'
          ' match the whole path, such as: '
          + ', '.join(near or list(paths)[:3])
          + '.'
      )
    for path in matched:
      values.setdefault(path, value)
  return values
