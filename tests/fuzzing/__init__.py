"""Decoders under a fuzzer that sees what an input reaches: `make fuzz`."""
