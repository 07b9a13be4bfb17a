from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Frame(_message.Message):
    __slots__ = ("hello", "proof", "request", "response", "chunk", "ping", "received")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    proof: Proof
    request: Request
    response: Response
    chunk: Chunk
    ping: Ping
    received: Received
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., proof: _Optional[_Union[Proof, _Mapping]] = ..., request: _Optional[_Union[Request, _Mapping]] = ..., response: _Optional[_Union[Response, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., received: _Optional[_Union[Received, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("version", "federation", "sender", "receiver", "nonce", "signature")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    version: int
    federation: bytes
    sender: str
    receiver: str
    nonce: bytes
    signature: bytes
    def __init__(self, version: _Optional[int] = ..., federation: _Optional[bytes] = ..., sender: _Optional[str] = ..., receiver: _Optional[str] = ..., nonce: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Proof(_message.Message):
    __slots__ = ("signature",)
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    signature: bytes
    def __init__(self, signature: _Optional[bytes] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("id", "kind", "round", "digest", "size", "data")
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    id: int
    kind: str
    round: int
    digest: bytes
    size: int
    data: bytes
    def __init__(self, id: _Optional[int] = ..., kind: _Optional[str] = ..., round: _Optional[int] = ..., digest: _Optional[bytes] = ..., size: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("id", "ok", "reason", "digest", "size", "data", "failed")
    ID_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    id: int
    ok: bool
    reason: str
    digest: bytes
    size: int
    data: bytes
    failed: bool
    def __init__(self, id: _Optional[int] = ..., ok: _Optional[bool] = ..., reason: _Optional[str] = ..., digest: _Optional[bytes] = ..., size: _Optional[int] = ..., data: _Optional[bytes] = ..., failed: _Optional[bool] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("id", "answer", "data")
    ID_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    id: int
    answer: bool
    data: bytes
    def __init__(self, id: _Optional[int] = ..., answer: _Optional[bool] = ..., data: _Optional[bytes] = ...) -> None: ...

class Received(_message.Message):
    __slots__ = ("id", "answer", "pieces")
    ID_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    id: int
    answer: bool
    pieces: int
    def __init__(self, id: _Optional[int] = ..., answer: _Optional[bool] = ..., pieces: _Optional[int] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
