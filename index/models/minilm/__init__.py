"""The packaged all-MiniLM-L6-v2: its weights, its tokenizer, and its ONNX graph."""
