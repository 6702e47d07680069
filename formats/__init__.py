if __name__ != "moegg.formats":
    raise ImportError(f"imported as {__name__!r}: write 'import moegg.formats' (setup.py maps formats/ to moegg.formats)")
