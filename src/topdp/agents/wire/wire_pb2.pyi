from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
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
    __slots__ = ("id", "kind", "round", "digest", "size", "data", "signature")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NONE: _ClassVar[Request.Kind]
        HELLO: _ClassVar[Request.Kind]
        ROW: _ClassVar[Request.Kind]
        BYE: _ClassVar[Request.Kind]
        PROPOSE: _ClassVar[Request.Kind]
        COMMIT: _ClassVar[Request.Kind]
        RESOLVE: _ClassVar[Request.Kind]
        NOTICES: _ClassVar[Request.Kind]
        CARD: _ClassVar[Request.Kind]
    NONE: Request.Kind
    HELLO: Request.Kind
    ROW: Request.Kind
    BYE: Request.Kind
    PROPOSE: Request.Kind
    COMMIT: Request.Kind
    RESOLVE: Request.Kind
    NOTICES: Request.Kind
    CARD: Request.Kind
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    id: int
    kind: Request.Kind
    round: int
    digest: bytes
    size: int
    data: bytes
    signature: bytes
    def __init__(self, id: _Optional[int] = ..., kind: _Optional[_Union[Request.Kind, str]] = ..., round: _Optional[int] = ..., digest: _Optional[bytes] = ..., size: _Optional[int] = ..., data: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("id", "code", "words", "digest", "size", "data")
    class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NONE: _ClassVar[Response.Code]
        OK: _ClassVar[Response.Code]
        AGAIN: _ClassVar[Response.Code]
        ABORTED: _ClassVar[Response.Code]
        COMMITTED: _ClassVar[Response.Code]
        LATER: _ClassVar[Response.Code]
        STRANGER: _ClassVar[Response.Code]
        UNKNOWN_KIND: _ClassVar[Response.Code]
        UNKNOWN_ROUND: _ClassVar[Response.Code]
        GAP: _ClassVar[Response.Code]
        DAMAGED: _ClassVar[Response.Code]
        EQUIVOCATION: _ClassVar[Response.Code]
        QUARANTINED: _ClassVar[Response.Code]
        ROLLED_BACK: _ClassVar[Response.Code]
        OTHER_TERMS: _ClassVar[Response.Code]
        NOT_A_GREETING: _ClassVar[Response.Code]
        NOT_A_ROW: _ClassVar[Response.Code]
        BUSY: _ClassVar[Response.Code]
        UNDECIDED: _ClassVar[Response.Code]
        NO_MEETING: _ClassVar[Response.Code]
        FAILED: _ClassVar[Response.Code]
        NOT_A_STATEMENT: _ClassVar[Response.Code]
        GONE: _ClassVar[Response.Code]
    NONE: Response.Code
    OK: Response.Code
    AGAIN: Response.Code
    ABORTED: Response.Code
    COMMITTED: Response.Code
    LATER: Response.Code
    STRANGER: Response.Code
    UNKNOWN_KIND: Response.Code
    UNKNOWN_ROUND: Response.Code
    GAP: Response.Code
    DAMAGED: Response.Code
    EQUIVOCATION: Response.Code
    QUARANTINED: Response.Code
    ROLLED_BACK: Response.Code
    OTHER_TERMS: Response.Code
    NOT_A_GREETING: Response.Code
    NOT_A_ROW: Response.Code
    BUSY: Response.Code
    UNDECIDED: Response.Code
    NO_MEETING: Response.Code
    FAILED: Response.Code
    NOT_A_STATEMENT: Response.Code
    GONE: Response.Code
    ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    id: int
    code: Response.Code
    words: str
    digest: bytes
    size: int
    data: bytes
    def __init__(self, id: _Optional[int] = ..., code: _Optional[_Union[Response.Code, str]] = ..., words: _Optional[str] = ..., digest: _Optional[bytes] = ..., size: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

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
