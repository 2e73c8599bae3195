"""What engine ``trt`` is made of beside the engine itself."""
