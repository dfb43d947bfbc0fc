"""Checks of requests, and answers in the form of OpenAI's API."""

import base64
from collections.abc import Mapping, Sequence
import hashlib
import json
import pathlib
import re
from typing import Any

from starlette.responses import Response

from dualenc_jax.pipelines.serving.engine import Embedding
from dualenc_jax.utils import untrusted
from dualenc_jax.utils.errors import UserError

# Texts of a call, as OpenAI has it; letters of a text; bytes of a body.
MOST_TEXTS = 2048
MOST_LETTERS = 2**18
MOST_BYTES = 2**24


class Refusal(Exception):
  """A request that is answered with an error, and its HTTP status."""

  def __init__(
      self, status: int, message: str, code: str | None = None,
      **headers: str,
  ):
    super().__init__(message)
    self.status, self.code, self.headers = status, code, headers


def expect(holds: object, name: str, value: Any, expected: str) -> None:
  """Raises UserError, with a long value cut, unless that holds."""
  if not holds:
    text = untrusted.escape(json.dumps(value, ensure_ascii=False))
    quoted = text[:80] + '...' * (len(text) > 80)
    raise UserError(f'{name} is {quoted}; expected {expected}.')


def check_texts(given: Any, name: str = 'input') -> list[str]:
  """The texts of a request; UserError for all else."""
  texts = [given] if isinstance(given, str) else given
  is_list = isinstance(texts, list) and texts
  expect(is_list, name, given, 'a string or a list of strings, one or more')
  if type(texts[0]) in (int, list):
    raise UserError(
        f'{name} has token ids; expected texts, as this model has a vocabulary'
        ' of its own. In LangChain give check_embedding_ctx_length=False.'
    )
  if len(texts) > MOST_TEXTS:
    raise UserError(
        f'{name} has {len(texts):,} texts; expected at most {MOST_TEXTS:,}.'
        ' Send them in several calls.'
    )
  for i, text in enumerate(texts):
    where = name if isinstance(given, str) else f'{name}[{i}]'
    expect(isinstance(text, str), where, text, 'a string')
    if re.search('[\ud800-\udfff]', text):
      raise UserError(
          f'{where} has half of a surrogate pair; expected Unicode text.'
      )
    if not text.strip():
      raise UserError(f'{where} is empty; expected a text.')
    if len(text) > MOST_LETTERS:
      raise UserError(
          f'{where} has {len(text):,} letters; expected at most'
          f' {MOST_LETTERS:,}.'
      )
  return texts


def embeddings(
    found: Sequence[Embedding], model: str, as_base64: bool
) -> Response:
  """The answer of /v1/embeddings, of float32 in little endian as base64."""
  tokens = sum(each.tokens for each in found)
  data = []
  for index, (vector, _) in enumerate(found):
    value: Any = vector.tolist()
    if as_base64:
      value = base64.b64encode(vector.astype('<f4').tobytes()).decode()
    data.append({'object': 'embedding', 'index': index, 'embedding': value})
  return json_answer({
      'object': 'list',
      'data': data,
      'model': model,
      'usage': {'prompt_tokens': tokens, 'total_tokens': tokens},
  })


def error(
    status: int, message: str, code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
  """An error, which is the server's own from status 500 on."""
  kind = 'server_error' if status >= 500 else 'invalid_request_error'
  value = {'message': message, 'type': kind, 'param': None, 'code': code}
  return json_answer({'error': value}, status, headers)


def json_answer(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
  """JSON in ASCII: a terminal obeys nothing that a passage has in it."""
  content = json.dumps(value, allow_nan=False).encode()
  return Response(content, status, headers, 'application/json')


def read_page() -> tuple[str, str]:
  """The page, and the policy by which a browser runs its own script alone."""
  page = pathlib.Path(__file__).with_name('page.html').read_text()
  (script,) = re.findall(r'<script>(.*?)</script>', page, re.DOTALL)
  digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
  return page, (
      f"default-src 'none'; script-src 'sha256-{digest}'; connect-src 'self';"
      " style-src 'unsafe-inline'; img-src data:; base-uri 'none';"
      " form-action 'none'; frame-ancestors 'none'"
  )
