"""A deployment over Flower: made from nothing, checked, started, watched, and brought to its end.

Site            the folder of a deployment and its settings
new             writes such a folder: a working app, certificates, keys, units
check           all that can be refused before anything starts
Supervisor      starts the programs, submits the app, restarts and submits again
outcome         what really became of the run
serving         the status page and /metrics, on loopback
"""

from fedsub.deploy.outcome import Outcome, outcome
from fedsub.deploy.site import Site
from fedsub.deploy.supervise import Supervisor
from fedsub.deploy.web import serving

__all__ = ["Outcome", "Site", "Supervisor", "outcome", "serving"]
