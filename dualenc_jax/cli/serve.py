"""Serves models and their indexes by HTTP: a search page and JSON.

  dualenc serve --model_dir=second --index_dir=my_index
  dualenc serve --model_dir=a --model_dir=b

A model is a model_dir, a saved retriever, st:FOLDER, or a checkpoint that
`dualenc convert` reads; no config is run. http://127.0.0.1:8000 has

  GET  /               the page: hits, neighbours of a hit, models side by side
  POST /search         hits of {"query": ...}, or of {"passage": ...}
  POST /v1/embeddings  embeddings, in OpenAI's form; NAME is a model's query
                       tower, NAME:passage its passage tower
  GET  /v1/models, /healthz, /metrics

SIGTERM, or Ctrl-C, ends it once what is under way is answered.
"""

import argparse
from collections.abc import Sequence
import dataclasses
import importlib.util
import ipaddress
import logging
import pathlib
import re
import socket

from dualenc_jax.checkpoints import foreign_models
from dualenc_jax.cli import bm25, flags, runtime, saved_run
from dualenc_jax.retrieval.encoding import artifact
from dualenc_jax.retrieval.index import open_index
from dualenc_jax.retriever import Retriever
from dualenc_jax.utils import hub, json_file
from dualenc_jax.utils.errors import expect, UserError

_LOCAL = '127.0.0.1', 'localhost', '[::1]'
_LOG = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> None:
  args = make_parser().parse_args(argv)
  folders = [hub.folder_of(folder) for folder in args.model_dir]
  names = args.names or [folder.absolute().name for folder in folders]
  _check_args(args, names)
  # Extras, and slow to import.
  from dualenc_jax.pipelines.serving import server
  from dualenc_jax.pipelines.serving.app import App
  from dualenc_jax.pipelines.serving.engine import Engine

  runtime.start()
  key = _read_key(args.api_key)
  with _listen(args.host, args.port) as listener:
    retrievers, with_words = {}, []
    words = bm25.words(args)
    for i, name in enumerate(names):
      index = args.index_dir[i] if args.index_dir else None
      retrievers[name] = _open(args.model_dir[i], index, args)
      if len(retrievers[name]) and args.hybrid:
        try:
          retrievers[name].index_words(**dataclasses.asdict(words))
          with_words.append(name)
        except UserError as e:
          _LOG.warning('%s: no hybrid search: %s', name, e)
    engine = Engine(retrievers, args.max_k, with_words)
    engine.warm_up()
    is_local = _is_local(args.host)
    hosts = tuple(dict.fromkeys([*_LOCAL, args.host])) if is_local else ()
    app = App(engine, key, hosts, args.timeout, words.language)
    host, port = listener.getsockname()[:2]
    host = f'[{host}]' if ':' in host else host
    _LOG.info('Serving %s at http://%s:%d', ', '.join(names), host, port)
    server.run(app, listener, args.timeout)


def _check_args(args: argparse.Namespace, names: Sequence[str]) -> None:
  """Raises UserError for what does not go together or is not installed."""
  flags.check_models(args, names)
  if not _is_local(args.host) and not args.api_key:
    raise UserError(
        f'--host is {args.host}, which other machines reach: give --api_key,'
        ' which their requests must bring, or leave --host out.'
    )
  # A greater one would be taken modulo 2^16.
  expect(args.port < 2**16, '--port', args.port, 'at most 65535')
  packages = 'starlette', 'uvicorn'
  missing = [name for name in packages if not importlib.util.find_spec(name)]
  if missing:
    raise UserError(
        f'`dualenc serve` needs {" and ".join(missing)}:'
        " pip install 'dualenc-jax[serve]'."
    )


def make_parser() -> flags.Parser:
  parser = flags.Parser('serve', __doc__)
  add = parser.add_argument
  add('--model_dir', action='append', required=True,
      help='a model_dir, or another model as above; repeatable, to compare')
  add('--index_dir', action='append',
      help=f'{flags.INDEX_DIR}, or none if that does not exist; one for each'
      ' --model_dir')
  add('--names', type=flags.listed, metavar='NAME[,NAME]',
      help='names of the models (default their folders)')
  flags.add_dim(parser)
  flags.add_prompts(parser, of_passages=False)
  add('--candidates', type=flags.whole(), metavar='L', help=flags.CANDIDATES)
  add('--no_hybrid', dest='hybrid', action='store_false',
      help='do not count the words of the passages, which hybrid search needs')
  bm25.add_flags(parser)
  add('--max_k', type=flags.whole(), default=100,
      help='most hits that a request may ask for (default %(default)s)')
  add('--host', default=_LOCAL[0],
      help='address to listen at (default %(default)s); another one needs'
      ' --api_key')
  add('--port', type=flags.whole(0), default=8000,
      help='port to listen at; 0 for any (default %(default)s)')
  add('--api_key', metavar='KEY | @FILE',
      help='key that requests must bring, as "Authorization: Bearer KEY"; a'
      ' file keeps it from the list of processes')
  add('--timeout', type=flags.whole(), default=30, metavar='SECONDS',
      help='time for a client to send a request, or to take more of an answer'
      ' (default %(default)s)')
  return parser


def _is_local(host: str) -> bool:
  try:
    return ipaddress.ip_address(host).is_loopback
  except ValueError:
    return host == 'localhost'


def _read_key(given: str | None) -> str | None:
  """The key of --api_key, which may be in a file."""
  if given is None:
    return None
  where, key = '--api_key', given
  if given.startswith('@'):
    path = pathlib.Path(given[1:]).expanduser()
    where, key = str(path), json_file.read_text(path, 'Give another file.')
  key = key.strip()
  if not re.fullmatch('[!-~]+', key):
    raise UserError(
        f'{where} has no key that a header can have; expected letters, digits'
        ' and signs of ASCII without spaces.'
    )
  return key


def _listen(host: str, port: int) -> socket.socket:
  """A socket that listens; requests wait until the models are there."""
  try:
    if not _is_local(host):
      _LOG.warning(
          'Other machines reach %s, by HTTP, which anyone between may read: put'
          ' a proxy with TLS before it.', host,
      )
    family, *_, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    return socket.create_server(address[:2], family=family, backlog=2048)
  except OSError as e:
    raise UserError(
        f'--host={host} --port={port}: {e}. Give another --port, or 0 for one'
        ' that is free.'
    ) from e


def _open(
    folder: str, index: str | None, args: argparse.Namespace
) -> Retriever:
  """A model and, where it has one, its index."""
  path = hub.folder_of(folder)
  is_saved = (path / artifact.FILE).exists()
  if hub.is_foreign(folder):
    towers = foreign_models.load(folder, args.dim, args.prompt)
    own = None if index is None else open_index(towers, index)
    return Retriever(towers, own, args.candidates)
  if index is None and not is_saved and not hub.is_on_hub(folder):
    usual = saved_run.results_dir(folder, args.dim) / artifact.INDEX
    index = str(usual) if usual.exists() else None
  return Retriever.from_dir(
      folder, index=index, dim=args.dim, candidates=args.candidates,
      prompt=args.prompt,
  )
