"""
Makes a drafting model in ONNX from a model folder. A tool, not a part of the running service.

It needs the extra ``export`` and neither torch nor transformers.
"""
