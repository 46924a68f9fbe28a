"""The packaged all-MiniLM-L6-v2 as plain arrays, its tokenizer, and its graph for ONNX Runtime."""
