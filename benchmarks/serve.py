"""Times `dualenc serve`; see benchmarks/README.md.

The same random weights twice behind the same server, ours and st:FOLDER, whose
texts sentence-transformers encodes. Clients keep a connection and send
/v1/embeddings with one query each, one after the other.
"""

import argparse
import asyncio
import base64
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from typing import Any

import encode
import harness
import numpy as np
import workload

SIDES = {encode.OURS: '', encode.PEER: 'st:'}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  add = parser.add_argument
  add('--model', choices=workload.MODELS, default='mini')
  add('--vocabulary', required=True, metavar='FILE', help='SentencePiece model')
  add('--mean_query', type=float, default=8.0, help='tokens of a query')
  add('--clients', type=int, nargs='+', default=[1, 8, 64])
  add('--requests', type=int, default=600, help='of all clients, in a round')
  add('--rounds', type=int, default=2)
  args = parser.parse_args()
  queries = list(workload.made_up_texts(
      args.vocabulary, args.requests, args.mean_query, 32
  ))
  with tempfile.TemporaryDirectory() as folder:
    share(args, f'{folder}/model')
    servers = {
        side: Server(f'{prefix}{folder}/model')
        for side, prefix in SIDES.items()
    }
    first = [asyncio.run(s.measure(queries, 8)) for s in servers.values()]
    cosines = np.sum(first[0]['vectors'] * first[1]['vectors'], axis=1)
    print(f'least cosine of two embeddings of a query: {cosines.min():.6f}')
    rows = []
    for clients in args.clients:
      turns: dict[str, list[Any]] = {side: [] for side in SIDES}
      for _ in range(args.rounds):
        for side, server in servers.items():
          turns[side].append(asyncio.run(server.measure(queries, clients)))
      for side, found in turns.items():
        times = np.concatenate([turn['seconds'] for turn in found])
        p50, p99 = 1e3 * np.percentile(times, [50, 99])
        rate = len(times) / sum(turn['wall'] for turn in found)
        core = 1e3 * sum(turn['core'] for turn in found) / len(times)
        rows.append(
            f'{clients} | {side} | {p50:.1f} | {p99:.1f} | {rate:.0f} |'
            f' {core:.1f}'
        )
    for server in servers.values():
      server.close()
  print(harness.table(
      'clients | side | p50 ms | p99 ms | queries a second | core ms a query',
      rows,
  ))


def share(args: argparse.Namespace, folder: str) -> None:
  """Writes random weights as a folder of sentence-transformers."""
  encode.Ours(argparse.Namespace(
      model=args.model, dtype='float32', vocabulary=args.vocabulary, batch=256,
      texts=None, passages=1, passage_length=128,
  )).share(folder)


class Server:
  """A process of `dualenc serve` over one model."""

  def __init__(self, model: str):
    self._process = subprocess.Popen(
        [
            sys.executable, '-m', 'dualenc_jax', 'serve', '--port=0',
            '--names=model', f'--model_dir={model}',
        ],
        stderr=subprocess.PIPE, text=True,
    )
    assert self._process.stderr is not None
    for line in self._process.stderr:
      if found := re.search(r'at http://.*:(\d+)$', line):
        self._port = int(found[1])
        return
    raise RuntimeError(f'The server of {model} has ended.')

  def close(self) -> None:
    self._process.terminate()
    assert self._process.wait(60) == 0

  async def measure(self, queries: list[str], clients: int) -> dict[str, Any]:
    """Sends each query once: seconds of each, wall and core seconds of all."""
    waiting = list(enumerate(queries))
    seconds, vectors = np.empty(len(queries)), [np.empty(0)] * len(queries)

    async def client() -> None:
      reader, writer = await asyncio.open_connection('127.0.0.1', self._port)
      while waiting:
        place, text = waiting.pop()
        body = json.dumps({
            'model': 'model', 'input': text, 'encoding_format': 'base64'
        }).encode()
        start = time.perf_counter()
        writer.write(
            b'POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\n'
            b'Content-Length: %d\r\n\r\n%s' % (len(body), body)
        )
        head = await reader.readuntil(b'\r\n\r\n')
        size = int(re.search(rb'content-length: (\d+)', head)[1])
        answer = json.loads(await reader.readexactly(size))
        seconds[place] = time.perf_counter() - start
        value = base64.b64decode(answer['data'][0]['embedding'])
        vectors[place] = np.frombuffer(value, '<f4')
      writer.close()

    core, start = self._core_seconds(), time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return {
        'seconds': seconds,
        'vectors': np.array(vectors),
        'wall': time.perf_counter() - start,
        'core': self._core_seconds() - core,
    }

  def _core_seconds(self) -> float:
    stat = pathlib.Path(f'/proc/{self._process.pid}/stat').read_text()
    fields = stat.rpartition(')')[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')


if __name__ == '__main__':
  main()
