"""What is killed: each victim works in a process of its own, says what it has done, and is looked at after its death.

A new one is a class with the three methods of `Victim`, and a line here.
"""

from tests.faults.victims.clients import Clients
from tests.faults.victims.creation import Creation
from tests.faults.victims.graphs import Graphs
from tests.faults.victims.journalled import Journalled
from tests.faults.victims.observed import Observed
from tests.faults.victims.stored import Stored
from tests.faults.victims.tiers import Tiers
from tests.faults.victims.victim import Victim

VICTIMS: tuple[Victim, ...] = (Stored(), Graphs(), Observed(), Creation(), Journalled(), Tiers(), Clients())
