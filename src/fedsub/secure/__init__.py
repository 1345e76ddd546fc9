"""Secure sums: what clients send is added without being seen.

`setting` is what all agree on; `client` and `server` are two state machines that exchange bytes (`wire`); `driver` has
them talk in one process. `ring` and `quantise` are the numbers, `keys`, `ciphers`, `masks`, `shamir` and `graph` the
machinery, `identities` says who is who, `union` and `rows` are what a round over submodels needs besides. The page is
docs/secure_sum.md.
"""

from fedsub.secure.client import SecureClient
from fedsub.secure.driver import Faulty, Network, Perfect, run_protocol
from fedsub.secure.graph import degree_and_threshold
from fedsub.secure.identities import Identity, Registry, new_identity, register
from fedsub.secure.lengths import sum_bytes
from fedsub.secure.quantise import Quantiser
from fedsub.secure.ring import Segment
from fedsub.secure.rows import RowRule, context_of
from fedsub.secure.server import SecureServer, Summed
from fedsub.secure.setting import Setting
from fedsub.secure.union import Asking, Counting, Uniting, private_union, secure_counts

__all__ = [
    "Asking", "Counting", "Faulty", "Identity", "Network", "Perfect", "Quantiser", "Registry", "RowRule",
    "SecureClient", "SecureServer", "Segment", "Setting", "Summed", "Uniting", "context_of", "degree_and_threshold",
    "new_identity", "private_union", "register", "run_protocol", "secure_counts", "sum_bytes",
]  # fmt: skip
