"""The software bill of materials of a wheel (CycloneDX 1.6, JSON): `python release/sbom.py WHEEL OUT`.

It lists what the wheel's metadata declares as needed at run time, extras left out. A wheel declares ranges and not
versions, so a component has its requirement as a property and no version. The time is `SOURCE_DATE_EPOCH` and the
serial number follows from the wheel's hash: the same wheel has the same bill, to the byte.
"""

from __future__ import annotations

import hashlib
import os
import sys
import uuid
import zipfile
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def metadata_of(wheel: Path) -> Metadata:
    """The wheel's core metadata, checked by their specification."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Metadata.from_email(archive.read(name))


def component(requirement: Requirement) -> Component:
    """What a requirement asks for. A marker of the environment makes it optional, and stays in the property."""
    purl = PackageURL("pypi", name=canonicalize_name(requirement.name))
    return Component(
        type=ComponentType.LIBRARY,
        name=requirement.name,
        bom_ref=str(purl),
        purl=purl,
        scope=ComponentScope.OPTIONAL if requirement.marker else ComponentScope.REQUIRED,
        properties=[Property(name="python:requirement", value=str(requirement))],
    )


def bill(wheel: Path, epoch: int) -> str:
    """The bill of a wheel as JSON, dated `epoch`, in seconds since 1970."""
    metadata = metadata_of(wheel)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    purl = PackageURL("pypi", name=metadata.name, version=str(metadata.version))
    subject = Component(
        type=ComponentType.LIBRARY,
        name=metadata.name,
        version=str(metadata.version),
        description=metadata.summary,
        bom_ref=str(purl),
        purl=purl,
        licenses=[LicenseExpression(metadata.license_expression)] if metadata.license_expression else [],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
    )
    needed = [one for one in metadata.requires_dist or [] if "extra ==" not in str(one.marker)]
    bom = Bom(
        components=map(component, needed),
        serial_number=uuid.uuid5(uuid.NAMESPACE_OID, digest),
        metadata=BomMetaData(component=subject, timestamp=datetime.fromtimestamp(epoch, UTC)),
    )
    bom.register_dependency(subject, bom.components)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(bill(Path(sys.argv[1]), int(os.environ["SOURCE_DATE_EPOCH"])), "utf-8", newline="\n")
