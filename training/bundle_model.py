"""Copies the default embedder's weights into the source tree, in float16, for wheels: `python -m training.bundle_model`."""

import shutil

import numpy as np
from safetensors.numpy import load_file, save_file

from kvproxy.index.models.minilm.weights import (
    BUNDLED,
    FLOAT16_FILE,
    check_packaged_weights,
    packaged_model,
    weights_file,
)


def main() -> None:
    folder = packaged_model()
    if folder != BUNDLED:
        check_packaged_weights(weights_file(folder))
        tensors = load_file(weights_file(folder))
        BUNDLED.mkdir(exist_ok=True)
        shutil.copyfile(folder / "tokenizer.json", BUNDLED / "tokenizer.json")
        halves = {name: value.astype(np.float16) for name, value in tensors.items() if value.dtype == np.float32}
        save_file(halves, BUNDLED / FLOAT16_FILE)
    check_packaged_weights(BUNDLED / FLOAT16_FILE)
    print(f"{BUNDLED}: {', '.join(sorted(file.name for file in BUNDLED.iterdir()))}")


if __name__ == "__main__":
    main()
