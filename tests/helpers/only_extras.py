"""Runs `dualenc` with the packages of some extras alone, as if none else were.

  python tests/helpers/only_extras.py data,plots train --gin_file=...
  python tests/helpers/only_extras.py mteb -c 'import mteb'

What pyproject.toml requires, and what that requires in turn, can be imported;
of whatever else is installed nothing can.
"""

import importlib.machinery
import importlib.metadata
import pathlib
import sys
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = pathlib.Path(__file__).resolve().parents[2]


def required(extras: list[str]) -> list[str]:
  """What pyproject.toml requires with these extras."""
  text = (ROOT / 'pyproject.toml').read_text()
  project = tomllib.loads(text)['project']
  found = [*project['dependencies']]
  for extra in extras:
    found += project['optional-dependencies'][extra]
  return found


def distributions(requirements: list[str]) -> set[str]:
  """All distributions that these bring, by their canonical names."""
  seen, waiting = set(), [Requirement(text) for text in requirements]
  while waiting:
    requirement = waiting.pop()
    name = canonicalize_name(requirement.name)
    for extra in {'', *requirement.extras}:
      if (name, extra) in seen:
        continue
      seen.add((name, extra))
      try:
        needs = importlib.metadata.requires(name) or ()
      except importlib.metadata.PackageNotFoundError:
        continue  # For another platform, or of no use to what is run here.
      for need in map(Requirement, needs):
        if need.marker is None or need.marker.evaluate({'extra': extra}):
          waiting.append(need)
  return {name for name, _ in seen}


def block(allowed: set[str]) -> None:
  """Keeps all modules of other distributions from being found."""
  owners = {
      module: {canonicalize_name(name) for name in names}
      for module, names in importlib.metadata.packages_distributions().items()
  }
  # The project itself is imported from wherever this Python finds it.
  allowed = allowed | {'dualenc-jax'}

  class Only(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
      own = owners.get(name.partition('.')[0])
      if own and not own & allowed:
        return None
      return super().find_spec(name, path, target)

  for module in list(sys.modules):
    own = owners.get(module.partition('.')[0])
    if own and not own & allowed:
      del sys.modules[module]
  metadata = importlib.metadata
  from_name = metadata.Distribution.from_name

  def known(name):
    if canonicalize_name(name) not in allowed:
      raise metadata.PackageNotFoundError(name)
    return from_name(name)

  # Libraries ask for versions of what they can do without.
  metadata.Distribution.from_name = staticmethod(known)
  usual = importlib.machinery.PathFinder
  sys.meta_path[:] = [Only if f is usual else f for f in sys.meta_path]


def main() -> int | None:
  extras = [extra for extra in sys.argv[1].split(',') if extra]
  block(distributions(required(extras)))
  if sys.argv[2] == '-c':
    # As Python has them.
    code, sys.argv[:] = sys.argv[3], ['-c', *sys.argv[4:]]
    return exec(code, {})
  from dualenc_jax.cli import main as cli

  return cli.main(sys.argv[2:])


if __name__ == '__main__':
  sys.exit(main())
