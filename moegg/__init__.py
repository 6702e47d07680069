"""moegg: runs Mixture-of-Experts language models that are larger than RAM from one file. Imports nothing heavy."""
__version__ = "0.1.0"
