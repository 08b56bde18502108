"""Codecs: payloads, results and checkpoints that are encrypted (A256GCM) or signed (HS256) in the database.

The format and the contexts are those of clients/README.md, which all libraries share. An error never shows a byte of a
value.
"""
from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from typing import Any

from tq import statements

VERSION = "v1"


class CodecError(Exception):
    """A value that does not decode. The message names the key id and what was wrong."""


class Codec:
    """Encodes with one algorithm and key, and decodes with both algorithms and all keys.

    `keys` maps ids to keys of 32 bytes, as bytes or in base64. `use` is the id of the key that encodes. With
    `accept_plain`, values that are not encoded are taken as they are.
    """

    alg: str | None = None

    def __init__(self, keys: Mapping[str, bytes | str], use: str, *, accept_plain: bool = False) -> None:
        self.keys = {kid: _key(kid, key) for kid, key in keys.items()}
        if use not in self.keys:
            raise ValueError(f"no key has the id {use!r}")
        self.use = use
        self.accept_plain = accept_plain

    def encode(self, value: Any, context: str) -> dict[str, Any]:
        """The encoded value, an object for a jsonb."""
        return self.encode_text(statements.to_json(value), context)

    def decode(self, value: Any, context: str) -> Any:
        """The value of an encoded one. Raises CodecError."""
        if self.accept_plain and not (isinstance(value, dict) and "tq" in value and "alg" in value):
            return value
        text = self.decode_text(value, context)
        try:
            return json.loads(text)
        except ValueError:
            raise CodecError(f"the text under key {value['kid']!r} is not JSON") from None

    def encode_text(self, text: str, context: str) -> dict[str, Any]:
        raise NotImplementedError

    def decode_text(self, value: Any, context: str) -> str:
        """The text of an encoded value. Raises CodecError."""
        if not isinstance(value, dict) or "tq" not in value or "alg" not in value:
            raise CodecError("the value is not encoded")
        if value["tq"] != VERSION:
            raise CodecError("the version of the format is unknown")
        kid = value.get("kid")
        if not isinstance(kid, str):
            raise CodecError("the value has no key id")
        if kid not in self.keys:
            raise CodecError(f"key {kid[:63]!r} is unknown")
        if value["alg"] == A256GCM.alg:
            return _decrypted(value, kid, self.keys[kid], context)
        if value["alg"] == HS256.alg:
            return _verified(value, kid, self.keys[kid], context)
        raise CodecError("the algorithm is unknown")


def _key(kid: str, key: bytes | str) -> bytes:
    key = base64.b64decode(key, validate=True) if isinstance(key, str) else bytes(key)
    if len(key) != 32:
        raise ValueError(f"key {kid!r} has {len(key)} bytes; it must have 32")
    return key


def _bytes(value: dict[str, Any], name: str, kid: str) -> bytes:
    try:
        return base64.b64decode(value[name].encode("ascii"), validate=True)
    except (KeyError, AttributeError, UnicodeEncodeError, binascii.Error):
        raise CodecError(f"{name} under key {kid!r} is missing or not base64") from None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _decrypted(value: dict[str, Any], kid: str, key: bytes, context: str) -> str:
    iv, sealed = _bytes(value, "iv", kid), _bytes(value, "ct", kid)
    if len(iv) != 12 or len(sealed) < 16:
        raise CodecError(f"iv or ct under key {kid!r} is too short or too long")
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise CodecError("the value is encrypted, and the package cryptography is not installed") from None
    try:
        return AESGCM(key).decrypt(iv, sealed, context.encode()).decode()
    except InvalidTag:
        raise CodecError(f"the check with key {kid!r} failed") from None
    except UnicodeDecodeError:
        raise CodecError(f"the text under key {kid!r} is not UTF-8") from None


def _verified(value: dict[str, Any], kid: str, key: bytes, context: str) -> str:
    text, mac = value.get("text"), _bytes(value, "mac", kid)
    if not isinstance(text, str):
        raise CodecError(f"the value under key {kid!r} has no text")
    if not hmac.compare_digest(mac, _mac(key, text, context)):
        raise CodecError(f"the check with key {kid!r} failed")
    return text


def _mac(key: bytes, text: str, context: str) -> bytes:
    return hmac.new(key, context.encode() + b"\0" + text.encode(errors="surrogatepass"), hashlib.sha256).digest()


class A256GCM(Codec):
    """AES-256-GCM. Needs the package cryptography."""

    alg = "A256GCM"

    def __init__(self, keys: Mapping[str, bytes | str], use: str, *, accept_plain: bool = False) -> None:
        super().__init__(keys, use, accept_plain=accept_plain)
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        self.cipher = AESGCM(self.keys[use])

    def encode_text(self, text: str, context: str) -> dict[str, Any]:
        iv = os.urandom(12)
        sealed = self.cipher.encrypt(iv, text.encode(), context.encode())
        return {"tq": VERSION, "alg": self.alg, "kid": self.use, "iv": _base64(iv), "ct": _base64(sealed)}


class HS256(Codec):
    """HMAC-SHA256: readable, but not to be forged."""

    alg = "HS256"

    def encode_text(self, text: str, context: str) -> dict[str, Any]:
        return {"tq": VERSION, "alg": self.alg, "kid": self.use, "text": text, "mac": _base64(_mac(self.keys[self.use], text, context))}
