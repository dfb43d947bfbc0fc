"""Copies encoder and token embedder out of a legacy T5X checkpoint.

Usage: python extract_weights.py CHECKPOINT_FOLDER OUT.npz
"""

import gzip
import json
import pathlib
import sys

import numpy as np

PREFIXES = ('target.encoder.', 'target.token_embedder.')


def read_zarr(folder: pathlib.Path) -> np.ndarray:
  """Reads a gzip-compressed zarr array that is stored as one chunk."""
  meta = json.loads((folder / '.zarray').read_text())
  if meta['chunks'] != meta['shape'] or meta['compressor']['id'] != 'gzip':
    raise ValueError(f'{folder}: expected one gzip chunk, found {meta}')
  chunk = folder / '.'.join('0' for _ in meta['shape'])
  data = gzip.decompress(chunk.read_bytes())
  return np.frombuffer(data, meta['dtype']).reshape(meta['shape'])


def main(checkpoint: str, out: str) -> None:
  folders = sorted(pathlib.Path(checkpoint).glob('target.*'))
  np.savez_compressed(
      out,
      **{
          folder.name.removeprefix('target.').replace('.', '/'): read_zarr(
              folder
          )
          for folder in folders
          if folder.name.startswith(PREFIXES)
      },
  )


if __name__ == '__main__':
  main(*sys.argv[1:])
