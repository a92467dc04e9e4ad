"""The frontends. Each turns a model from elsewhere into a primitive graph.

``onnx`` reads ONNX files, bytes and objects; ``torch`` exports PyTorch modules, which ``onnx`` then
reads. May import packages below 6.
"""
