"""Tests of what a link puts on the wire and takes from it."""

from topdp.agents.wire import wire_pb2 as wire
from topdp.agents.wire.links import SHARED_FIELDS, announced_message, request_head
from topdp.agents.wire.transport import Message, MessageKind


def test_every_field_of_a_message_arrives():
    message = Message.of(MessageKind.ROW, round=7, body=b"row", signature=b"signed")
    assert announced_message(request_head(message), b"row") == message


def test_a_request_has_no_field_that_messages_lack():
    transport_only = {"id", "size", "data"}  # set by the writer, for each frame
    names = {field.name for field in wire.Request.DESCRIPTOR.fields}
    assert names - transport_only == {*SHARED_FIELDS, "kind", "digest"}
