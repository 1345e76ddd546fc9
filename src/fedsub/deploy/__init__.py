"""A deployment over Flower: made from nothing, checked, started, watched, and brought to its end.

site.Site                 the folder of a deployment and its settings
scaffold.new              writes such a folder: a working app, certificates, keys, units
check.check               all that can be refused before anything starts
supervise.Supervisor      starts the programs, submits the app, restarts and submits again
simulate.simulate         the same app in Flower's simulation, without keys or proxy
outcome.outcome           what really became of the run
web.serving               the status page and /metrics, on loopback
"""
