"""The requests of `dualenc serve`, a Starlette app: a page, JSON, metrics.

Errors have OpenAI's form, {"error": {"message", "type", "param", "code"}}, on
all paths. A body is read to the end only if its key is right and its size
bounded; what is in it is checked before it waits for the models.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
import contextlib
import hmac
import logging
import re
import time
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from dualenc_jax.pipelines.serving import forms
from dualenc_jax.pipelines.serving.batcher import Batcher, Full
from dualenc_jax.pipelines.serving.engine import (
  Engine,
  Job,
  NEIGHBOURS,
  PASSAGE,
  QUERY,
  SEARCH,
)
from dualenc_jax.pipelines.serving.metrics import Metrics
from dualenc_jax.retrieval.search import hybrid as hybrid_lib, snippet
from dualenc_jax.retriever import Hit
from dualenc_jax.utils import json_file, untrusted
from dualenc_jax.utils.errors import did_you_mean_or_known, UserError

# Bytes, numbers or letters that are handled sooner than a thread begins.
_SMALL = 2**13
# Letters of a passage that are looked at for a snippet.
_SNIPPED = 2**14
_FORMATS = None, 'float', 'base64'
_PASSAGE = ':passage'
_LOG = logging.getLogger(__name__)


class App:
  """An ASGI app that answers requests."""

  def __init__(
      self, engine: Engine, api_key: str | None = None,
      hosts: Sequence[str] = (), timeout: float = 30.0,
      language: str | None = snippet.LANGUAGE,
  ):
    """Takes what is served.

    Args:
      engine: models by name, the first of which is the default of /search.
      api_key: the key that requests must bring, if any.
      hosts: names that requests may give to this server; any if empty. Without
        a key they keep pages of other sites from reading answers.
      timeout: seconds that a client has to send a body.
      language: of snippets.
    """
    self._engine, self._key, self._hosts = engine, api_key, hosts
    self._timeout, self._language = timeout, language
    self._metrics = Metrics()
    self._batcher = Batcher(
        engine.run, lambda job: job.most, observe=self._metrics.add_batch
    )
    self._started = int(time.time())
    # The name of each tower for OpenAI's clients, which send nothing else.
    self._towers = {name: (name, QUERY) for name in engine.retrievers}
    self._towers |= {n + _PASSAGE: (n, PASSAGE) for n in engine.encoders}
    self._page, self._policy = forms.read_page()
    routes: dict[str, tuple[str, Callable[..., Awaitable[Response]], bool]] = {
        '/': ('GET', self._answer_page, False),
        '/healthz': ('GET', self._answer_health, False),
        '/metrics': ('GET', self._answer_metrics, True),
        '/search': ('POST', self._search, True),
        '/v1/models': ('GET', self._list_models, True),
        '/v1/embeddings': ('POST', self._embed, True),
    }
    self._paths = frozenset(routes)
    self._starlette = Starlette(
        routes=[
            Route(path, self._guarded(answer, needs_key), methods=[method])
            for path, (method, answer, needs_key) in routes.items()
        ],
        exception_handlers={
            HTTPException: self._refuse_request, Exception: self._fail
        },
        lifespan=lambda app: self._lifespan(),
    )

  async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
    if scope['type'] != 'http':
      await self._starlette(scope, receive, send)
      return
    start, status = time.perf_counter(), 500

    async def note_status(message: Any) -> None:
      nonlocal status
      status = message.get('status', status)
      await send(message)

    try:
      await self._starlette(scope, receive, note_status)
    finally:
      path = scope['path'] if scope['path'] in self._paths else 'other'
      seconds = time.perf_counter() - start
      self._metrics.add_request(path, status, seconds)

  @contextlib.asynccontextmanager
  async def _lifespan(self):
    async with self._batcher.working():
      yield

  def _guarded(
      self, answer: Callable[..., Awaitable[Response]], needs_key: bool
  ) -> Callable[[Request], Awaitable[Response]]:
    async def run(request: Request) -> Response:
      try:
        self._check_host(request)
        if needs_key:
          self._check_key(request)
        return await answer(request)
      except forms.Refusal as e:
        return forms.error(e.status, str(e), e.code, e.headers)
      except UserError as e:
        return forms.error(400, str(e))
      except Full as e:
        return forms.error(
            503, f'The server is busy: {e}. Send it again later.',
            headers={'Retry-After': '1'},
        )
      except ClientDisconnect:
        return Response(status_code=499)  # As nginx has it; nobody reads it.

    return run

  def _check_host(self, request: Request) -> None:
    name = re.sub(r':\d*$', '', request.headers.get('host', ''))
    if self._hosts and name not in self._hosts:
      raise forms.Refusal(
          421, f'The host is {untrusted.quote(name)}; expected'
          f' {" or ".join(self._hosts)}. Another --host is served with'
          ' --api_key.',
      )

  def _check_key(self, request: Request) -> None:
    given = request.headers.get('authorization', '')
    if self._key is not None and not hmac.compare_digest(
        given.encode(), f'Bearer {self._key}'.encode()
    ):
      raise forms.Refusal(
          401, 'The key is missing or wrong; expected the header'
          ' "Authorization: Bearer KEY" with that of --api_key.',
          'invalid_api_key', **{'WWW-Authenticate': 'Bearer'},
      )

  async def _refuse_request(self, request: Request, error: Any) -> Response:
    del request
    status = error.status_code
    known = {404: f'Paths: {", ".join(sorted(self._paths))}.'}
    message = f'{error.detail}. {known.get(status, "")}'.strip()
    return forms.error(status, message, headers=error.headers)

  async def _fail(self, request: Request, error: Exception) -> Response:
    _LOG.error('%s failed.', request.url.path, exc_info=error)
    return forms.error(500, 'The server has failed; its log says why.')

  async def _body(self, request: Request, known: Sequence[str]) -> Any:
    """The object of a body with some of these keys."""
    size = request.headers.get('content-length', '')
    parts, count = [], int(size) if untrusted.is_digits(size[:18]) else 0
    if count <= forms.MOST_BYTES:
      count = 0
      try:
        async with asyncio.timeout(self._timeout):
          async for part in request.stream():
            parts.append(part)
            count += len(part)
            if count > forms.MOST_BYTES:
              break
      except TimeoutError:
        raise forms.Refusal(
            408, f'The body has not come within {self._timeout:g} s.'
        ) from None
    if count > forms.MOST_BYTES:
      raise forms.Refusal(
          413, f'The body has more than {forms.MOST_BYTES:,} bytes. Send its'
          ' texts in several calls.',
      )
    content = b''.join(parts)
    body = await _aside(
        count, json_file.parse, content, 'The body',
        'Expected an object in UTF-8.',
    )
    for key in body:
      if key not in known:
        raise UserError(
            f'The body has the key {untrusted.quote(key)}.'
            f'{did_you_mean_or_known(key, known)}'
        )
    return body

  # OpenAI's form.

  async def _embed(self, request: Request) -> Response:
    body = await self._body(
        request,
        ('model', 'input', 'encoding_format', 'dimensions', 'user'),
    )
    for name in ('model', 'input'):
      if name not in body:
        raise UserError(f'The body has no "{name}"; expected one.')
    asked = body['model']
    forms.expect(isinstance(asked, str), 'model', asked, 'the name of a model')
    model, side = self._find_model(asked, self._towers)
    texts = forms.check_texts(body['input'])
    form, size = body.get('encoding_format'), body.get('dimensions')
    forms.expect(
        form in _FORMATS, 'encoding_format', form, '"float" or "base64"'
    )
    dim = self._engine.retrievers[model].dim
    forms.expect(
        size in (None, dim), 'dimensions', size,
        f'{dim}, or null; `dualenc serve --dim` serves fewer',
    )
    found = await self._batcher.submit(Job(side, model), texts)
    return await _aside(
        len(found) * dim, forms.embeddings, found, asked, form == 'base64'
    )

  async def _list_models(self, request: Request) -> Response:
    del request
    retrievers = self._engine.retrievers
    return forms.json_answer({'object': 'list', 'data': [
        {
            'id': name,
            'object': 'model',
            'created': self._started,
            'owned_by': 'dualenc_jax',
            'tower': side,
            'dim': retrievers[model].dim,
            'passages': len(retrievers[model]),
            'hybrid': model in self._engine.with_words,
        }
        for name, (model, side) in self._towers.items()
    ]})

  def _find_model(self, name: str, known: Mapping[str, Any]) -> Any:
    if name not in known:
      raise forms.Refusal(
          404, f'There is no model {untrusted.quote(name)}.'
          f'{did_you_mean_or_known(name, known)}', 'model_not_found',
      )
    return known[name]

  # Our own.

  async def _search(self, request: Request) -> Response:
    body = await self._body(
        request, ('query', 'passage', 'k', 'hybrid', 'model')
    )
    retrievers = self._engine.retrievers
    model = body.get('model', next(iter(retrievers)))
    forms.expect(isinstance(model, str), 'model', model, 'the name of a model')
    if not len(self._find_model(model, retrievers)):
      raise UserError(
          f'The model {model} has no index: serve it with --index_dir.'
      )
    kind, name = SEARCH, 'query'
    if 'passage' in body:
      kind, name = NEIGHBOURS, 'passage'
    if ('query' in body) == ('passage' in body):
      raise UserError(
          'The body has both query and passage, or neither; expected a query to'
          ' search for, or a passage whose neighbours are searched.'
      )
    text = body[name]
    forms.expect(isinstance(text, str), name, text, 'a string')
    forms.check_texts(text, name)
    k, most = body.get('k', 10), self._engine.max_k
    forms.expect(
        type(k) is int and 1 <= k <= most, 'k', k,
        f'1 to {most}; `dualenc serve --max_k` allows more',
    )
    hybrid = body.get('hybrid')
    if hybrid is not None:
      is_share = type(hybrid) in (int, float) and 0 <= hybrid <= 1
      forms.expect(
          is_share or hybrid == hybrid_lib.RRF, 'hybrid', hybrid,
          '0 (BM25 alone) to 1 (dense alone), "rrf", or null',
      )
      has_words = model in self._engine.with_words and kind == SEARCH
      forms.expect(
          has_words, 'hybrid', hybrid,
          'null: only queries are searched for by their words, and only where'
          ' the index has texts',
      )
    if kind == NEIGHBOURS and model not in self._engine.encoders:
      raise UserError(
          f'The model {model} has no passage tower here: give a query.'
      )
    job = self._engine.job(kind, model, k, hybrid)
    (hits,) = await self._batcher.submit(job, [text])
    size = len(text) + sum(len(hit.passage.text) for hit in hits)
    return await _aside(
        size, self._hits, model, text, hits[:k], kind == SEARCH
    )

  def _hits(
      self, model: str, text: str, hits: Sequence[Hit], is_query: bool
  ) -> Response:
    tokenizer = self._engine.retrievers[model].tokenizer
    notes = list(tokenizer.query_warnings(text)) if is_query else []
    # The words of a passage are in all of its sentences.
    words = text if is_query else ''
    rows = []
    for rank, (score, own) in enumerate(hits, 1):
      best = snippet.find_snippet(
          words, own.text[:_SNIPPED], self._language, own.name
      )
      rows.append({
          'rank': rank,
          'id': own.id,
          'score': score,
          'name': own.name,
          'snippet': best.text,
          'snippet_matches': best.matches,
          'text': own.text,
      })
    return forms.json_answer({'model': model, 'hits': rows, 'notes': notes})

  async def _answer_page(self, request: Request) -> Response:
    del request
    return HTMLResponse(self._page, headers={
        'Content-Security-Policy': self._policy,
        'X-Content-Type-Options': 'nosniff',
    })

  async def _answer_health(self, request: Request) -> Response:
    del request
    return forms.json_answer({'status': 'ok'})

  async def _answer_metrics(self, request: Request) -> Response:
    del request
    return PlainTextResponse(
        self._metrics.text(self._batcher.waiting),
        media_type='text/plain; version=0.0.4',
    )


async def _aside(size: int, work: Callable[..., Any], *args: Any) -> Any:
  """Calls `work`, in a thread if it is large, so that others are answered."""
  if size <= _SMALL:
    return work(*args)
  return await asyncio.to_thread(work, *args)
