# SPDX-License-Identifier: Apache-2.0
"""What "healthy" means for an engine: it answers with the key, refuses without, and generates tokens.

Everything goes through the public API, so it holds for every backend. Times are seconds.
"""

import http.client
import json
import re
import time


class Unhealthy(Exception):
    """The endpoint is not (yet) what it should be; asking again later may help."""


class Insecure(Exception):
    """The endpoint serves in a way that waiting cannot cure."""


class Endpoint:
    """The API of one engine.

    Args:
        address: address or host name; a wildcard address means this host.
        port: TCP port.
        api_key: the key, or "" to ask without one.
    """

    def __init__(self, address, port, api_key):
        self.address = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(address, address)
        self.port = port
        self.api_key = api_key

    def request(self, method, path, timeout, body=None, key=None):
        """Send one request and return (connection, response); the caller closes the connection.

        Raises:
            Unhealthy: no connection, or no answer in time.
        """
        headers = {"Content-Type": "application/json"}
        key = self.api_key if key is None else key
        if key:
            headers["Authorization"] = "Bearer " + key
        connection = http.client.HTTPConnection(self.address, self.port, timeout=timeout)
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            return connection, connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise Unhealthy("{} {} on {}:{}: {!r}".format(method, path, self.address, self.port, error)) from error

    def fetch(self, method, path, timeout, body=None, key=None):
        """Send one request and return (status, text); raises Unhealthy as :meth:`request` does."""
        connection, response = self.request(method, path, timeout, body, key)
        try:
            return response.status, response.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            raise Unhealthy("{} {}: the answer broke off: {!r}".format(method, path, error)) from error
        finally:
            connection.close()

    def require_health(self, timeout):
        """Require 200 from /healthz."""
        status, text = self.fetch("GET", "/healthz", timeout)
        if status != 200:
            raise Unhealthy("/healthz answers {}: {}".format(status, text[:300]))

    def require_model(self, model, timeout):
        """Require that exactly this name is served."""
        status, text = self.fetch("GET", "/v1/models", timeout)
        if status != 200:
            raise Unhealthy("/v1/models answers {} with the key: {}".format(status, text[:300]))
        served = [entry.get("id") for entry in json.loads(text).get("data", [])]
        if model not in served:
            raise Unhealthy("model {} is not served here, but {}".format(model, ", ".join(map(str, served))))

    def require_refusal(self, timeout):
        """Require 401 for a request with a wrong key and for one without any."""
        for key, words in ((self.api_key + "x", "a wrong key"), ("", "no key")):
            status, _text = self.fetch("GET", "/v1/models", timeout, key=key)
            if status != 401:
                raise Insecure("a request with {} is answered with {} instead of 401".format(words, status))

    def complete(self, model, prompt, max_tokens, timeout):
        """Stream one answer and return what :func:`measure` makes of it.

        A model without a chat template is asked through /v1/completions.
        """
        common = {
            "model": model,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        chat = dict(common, messages=[{"role": "user", "content": prompt}])
        started, status, lines = self._stream("/v1/chat/completions", chat, timeout)
        if status == 400 and any(b"chat template" in line for _at, line in lines):
            started, status, lines = self._stream("/v1/completions", dict(common, prompt=prompt), timeout)
        if status != 200:
            text = b"".join(line for _at, line in lines).decode("utf-8", "replace")
            raise Unhealthy("a completion is answered with {}: {}".format(status, text[:300]))
        return measure(started, lines)

    def _stream(self, path, body, timeout):
        started = time.monotonic()
        connection, response = self.request("POST", path, timeout, body)
        try:
            return started, response.status, [(time.monotonic(), line) for line in response]
        except (OSError, http.client.HTTPException) as error:
            raise Unhealthy("POST {}: the answer broke off: {!r}".format(path, error)) from error
        finally:
            connection.close()


def measure(started, lines):
    """Return the figures of one streamed answer.

    Args:
        started: when the request was sent, on the clock of the lines.
        lines: [(time, line of server-sent events as bytes)].
    Returns:
        dict with answer (text), completion_tokens, first_token_seconds, tokens_per_second (tokens after the first one,
        over the time since the first one; null for a single token).
    Raises:
        Unhealthy: the stream holds an error, or no token.
    """
    answer, tokens, first, last = "", 0, None, None
    for at, line in lines:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[len(b"data: ") :].decode("utf-8"))
        if "error" in event:
            raise Unhealthy("the engine answers with an error: {}".format(event["error"]))
        for choice in event.get("choices", []):
            piece = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            # The first event of a chat only names the role; a token that is no text still ends with a reason.
            if piece or choice.get("finish_reason"):
                first = at if first is None else first
                last = at
            answer += piece
        tokens = (event.get("usage") or {}).get("completion_tokens") or tokens
    if not tokens or first is None:
        raise Unhealthy("the engine answered without generating a token")
    speed = (tokens - 1) / (last - first) if tokens > 1 and last > first else None
    return {
        "answer": answer,
        "completion_tokens": tokens,
        "first_token_seconds": round(first - started, 3),
        "tokens_per_second": None if speed is None else round(speed, 1),
    }


def exposure(text):
    """Return the overall figure of `systemd-analyze security UNIT`, or None when the output holds none."""
    found = re.search(r"Overall exposure level for \S+: (\d+\.\d+)", text)
    return float(found.group(1)) if found else None
