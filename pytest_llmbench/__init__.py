"""Benchmarks of LLM servers as pytest tests."""

__version__ = "0.1.0"
