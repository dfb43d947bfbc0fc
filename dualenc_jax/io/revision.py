"""Which versions of this code, and of what it computes with, run."""

import functools
import importlib.metadata
import pathlib
import platform
import subprocess

_LIBRARIES = ('flax', 'jax', 'jaxlib', 'numpy')


def versions() -> dict[str, str]:
  """Of Python and of the libraries that numbers depend on."""
  return {
      'python': platform.python_version(),
      **{name: importlib.metadata.version(name) for name in _LIBRARIES},
  }


@functools.cache
def git_revision() -> str | None:
  """The commit of the clone, with '-dirty' if files differ from it.

  None where the package is not in a clone of its own, or there is no git.
  """
  root = pathlib.Path(__file__).resolve().parents[2]
  if not (root / '.git').exists():
    return None
  command = ['git', '-C', str(root), 'describe', '--always', '--dirty']
  command += ['--abbrev=40', '--exclude=*']
  try:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True
    )
  except (OSError, subprocess.SubprocessError):
    return None
  return done.stdout.strip() or None
