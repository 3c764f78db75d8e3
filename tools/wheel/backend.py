"""meson-python as the backend of pyproject.toml; wheels also require the PyTorch that their extension was built for."""
import base64
import hashlib
import os
import re
import zipfile

import mesonpy
from mesonpy import build_sdist, get_requires_for_build_sdist, get_requires_for_build_wheel

__all__ = ["build_sdist", "build_wheel", "get_requires_for_build_sdist", "get_requires_for_build_wheel"]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = mesonpy.build_wheel(wheel_directory, config_settings, metadata_directory)
    path = os.path.join(wheel_directory, name)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(path + ".new", "w", zipfile.ZIP_DEFLATED) as new:
        version = re.search(r'TORCH_VERSION = "(\d+\.\d+)\.', old.read("duet_torch/_built_for.py").decode())[1]
        contents = {entry.filename: (entry, old.read(entry)) for entry in old.infolist()}
        metadata = next(file for file in contents if file.endswith(".dist-info/METADATA"))
        record = metadata.replace("METADATA", "RECORD")
        head, _, body = contents[metadata][1].partition(b"\n\n")
        text = head + f"\nRequires-Dist: torch=={version}.*\n\n".encode() + body
        digest = base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=").decode()
        line = f"{metadata},sha256={digest},{len(text)}"
        rows = re.sub(rf"^{re.escape(metadata)},.*$", line, contents[record][1].decode(), flags=re.M)
        contents[metadata] = (contents[metadata][0], text)
        contents[record] = (contents[record][0], rows.encode())
        for entry, data in contents.values():
            new.writestr(entry, data)
    os.replace(path + ".new", path)
    return name
