"""Copies the weights of the default embedder into the source tree, so that wheels contain them.

python -m training.bundle_model
"""

import shutil

from kvproxy.index.models.minilm.shipped import check_shipped
from kvproxy.index.models.minilm.weights import BUNDLED, packaged_model

FILES = ("model.safetensors", "tokenizer.json")


def main() -> None:
    folder = packaged_model()
    if folder != BUNDLED:
        BUNDLED.mkdir(exist_ok=True)
        for name in FILES:
            shutil.copyfile(folder / name, BUNDLED / name)
    check_shipped(BUNDLED / "model.safetensors")
    print(f"{BUNDLED}: {', '.join(FILES)}")


if __name__ == "__main__":
    main()
