"""
``tensorrt_llm`` as the recorded contract describes it, on the CPU: drafter interface, resource
managers, sampler acceptance and the executor's order of calls. Not the package: what this accepts,
the real one may still refuse.
"""
