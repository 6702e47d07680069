if __name__ != "moegg.converters":
    raise ImportError(f"imported as {__name__!r}: write 'import moegg.converters' (setup.py maps converters/ to it)")
from moegg.converters.run import ConvertResult, convert

__all__ = ["ConvertResult", "convert"]
