"""
TensorRT-LLM as a verification engine: drafts go in as one chain per sequence and step.

Written against a recorded contract of the package's API and tested on fakes built from it. **It has
not run against the real package**: that needs NVIDIA's release image and a GPU (docs/engines.md
names the command). The start-up probe refuses an installation that differs from the contract.

Only ``worker_plugin`` and ``package`` import ``tensorrt_llm``, and only when an engine is made.
"""
