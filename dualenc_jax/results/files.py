"""Files that appear whole or not at all."""

import contextlib
import os
import pathlib

from dualenc_jax.errors import UserError


def write(path: pathlib.Path, content: str | bytes) -> None:
  """Writes a file in UTF-8, replacing what was there.

  Raises:
    UserError: it cannot be written.
  """
  if isinstance(content, str):
    content = content.encode('utf-8')
  partial = path.with_name(f'{path.name}.{os.getpid()}.partial')
  try:
    partial.write_bytes(content)
    os.replace(partial, path)
  except OSError as e:
    raise UserError(f'{path} cannot be written: {e.strerror or e}.') from e
  finally:
    with contextlib.suppress(OSError):
      partial.unlink()
