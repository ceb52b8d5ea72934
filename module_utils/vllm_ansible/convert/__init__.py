# SPDX-License-Identifier: Apache-2.0
"""Model formats: what the sources hold, what the engine loads, and the way from one to the other.

Everything here is standard library but ``gguf_source``, which needs the packages of requirements/converter-gguf.lock.
"""


class ModelError(Exception):
    """A model that cannot be used as asked; the message says what is wrong, the value seen and what to set."""
