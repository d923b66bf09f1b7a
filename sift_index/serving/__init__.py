"""The serving layer: what an engine keeps per request and calls per forward pass.

Nothing of any engine is in it. `layer.ServingLayer` is where to begin; `example_engine` is an
engine in at most 60 lines of code that uses nothing else, `example_model` the model it runs.
"""
