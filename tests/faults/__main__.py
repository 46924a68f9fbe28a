"""Every harness, one after the other: `python -m tests.faults`."""

from tests.faults import damage, disks, fuzz, kills, outage, overload, smuggling, soak
from tests.faults.harness import main

if __name__ == "__main__":
    main(
        kills.HARNESS,
        disks.HARNESS,
        damage.HARNESS,
        outage.HARNESS,
        overload.HARNESS,
        fuzz.HARNESS,
        smuggling.HARNESS,
        soak.HARNESS,
    )
