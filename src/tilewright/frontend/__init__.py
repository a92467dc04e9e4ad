"""The frontends. Each turns a model from elsewhere into a primitive graph.

``onnx`` reads ONNX files, bytes and objects; the others end in it or build graphs directly. May
import packages below 6.
"""
