"""Tables in pieces: row r lies in shard r mod S, with what the server remembers of it."""
