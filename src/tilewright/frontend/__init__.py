"""Room 6: the frontends. Each turns a model from elsewhere into a primitive graph.

``onnx`` reads ONNX files, bytes and objects; the others end in it or build graphs directly. May
import rooms below 6.
"""
