"""TorchServe's gRPC messages; the ``*_pb2`` modules are generated from the ``.proto`` files when this is installed."""
