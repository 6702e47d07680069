"""Plain numpy f32 forward pass: the tests' own definition of every kind of block. Imports nothing of moegg but the vocabulary."""
