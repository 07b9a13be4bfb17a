"""How what agents say travels. Says to gRPC, before anything here imports it, what it reads once."""

from topdp.agents.wire.grpc_settings import settle_grpc

settle_grpc()
