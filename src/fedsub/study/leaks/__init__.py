"""What a curious server learns from what clients send, and what a secure sum, signs, noise or longer work leave of it.

A file by theme: `seen` (what it has in its hands after a round), `attacks` (rows and labels, in closed form), `rebuild`
(features, by matching gradients), `study` (all of them over methods and seeds), `shown` (table and picture), `words`
(protections as they are written on a command line).
"""

from fedsub.study.leaks.attacks import Guess, moved, residuals
from fedsub.study.leaks.rebuild import Rebuilt, rebuild
from fedsub.study.leaks.seen import Seen, watch
from fedsub.study.leaks.study import COLUMNS, attack

__all__ = ["COLUMNS", "Guess", "Rebuilt", "Seen", "attack", "moved", "rebuild", "residuals", "watch"]
