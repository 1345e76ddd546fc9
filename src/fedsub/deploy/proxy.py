"""The reverse proxy before Flower: nginx, which of Flower's one port passes only the twelve calls of the fleet.

Flower serves three interfaces on one port. Fleet, which nodes use, is signed by their keys; Control, which submits
code, and Runtime, which hands it out, are not. So Flower's port is on loopback and this stands before it. It ends TLS
and begins it anew: a node's signature covers the time and not the connection, and passes unchanged.
"""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import subprocess
from pathlib import Path

from fedsub.deploy.site import Site
from fedsub.errors import ConfigError

# All that a node ever calls; "register-node" included: with node authentication it registers no new keys.
FLEET = (
    "register-node", "activate-node", "deactivate-node", "unregister-node", "send-node-heartbeat", "pull-messages",
    "push-messages", "get-run", "get-fab", "push-object", "pull-object", "confirm-message-received",
)  # fmt: skip


def configuration(site: Site) -> str:
    """nginx's configuration, whole; it needs no other file and no privileges."""
    host, port = site.listens
    listen = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    calls, certs, state = "|".join(FLEET), site.certificates, site.state / "proxy"
    for path in (certs, state):
        if any(letter in str(path) for letter in "\"\\$;{}'\n"):
            raise ConfigError(f"nginx cannot be given the path {path}; move the deployment to one without quotes or $.")
    temporary = "\n".join(
        f'    {kind}_temp_path "{state}/{kind}";' for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return f"""# Written by `fedsub deploy` from deploy.toml; what is changed here is written over.
daemon off;
{_user(site)}worker_processes auto;
pid "{state}/nginx.pid";
error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    server_tokens off;
{temporary}
    # A stranger is heard for this long and this much, and holds few connections.
    client_header_timeout 10s;
    client_body_timeout 30s;
    client_max_body_size {max(1, round(site.settings.proxy.body_mb * 1024))}k;
    client_body_buffer_size 64k;
    large_client_header_buffers 4 8k;
    keepalive_timeout 75s;
    limit_conn_zone $binary_remote_addr zone=peers:4m;
    limit_conn peers 1000;

    # The calls of the fleet as they stand in the request itself, before any decoding. Nothing else gets through.
    map $request_uri $fleet {{
        default 0;
        "~^/v1/fleet/({calls})$" 1;
    }}
    upstream flower {{
        server 127.0.0.1:{site.settings.server.port};
        keepalive 64;
    }}
    server {{
        listen {listen} ssl;
        ssl_certificate "{certs}/server.crt";
        ssl_certificate_key "{certs}/server.key";
        ssl_protocols TLSv1.2 TLSv1.3;
        ssl_session_cache shared:tls:4m;
        location / {{
            return 403;
        }}
        location = /v1/fleet {{
            return 403;
        }}
        location /v1/fleet/ {{
            if ($fleet = 0) {{ return 403; }}
            if ($request_method != POST) {{ return 403; }}
            proxy_pass https://flower;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host localhost;
            proxy_ssl_verify on;
            proxy_ssl_trusted_certificate "{certs}/ca.crt";
            proxy_ssl_name localhost;
            proxy_ssl_server_name on;
            proxy_read_timeout 120s;
            proxy_next_upstream off;  # a message is handed out once
        }}
    }}
}}
"""


def _user(site: Site) -> str:
    """Started by root, nginx works as the folder's owner: nobody else may be let into it for bodies on their way."""
    if os.geteuid() != 0:
        return ""
    there = os.stat(site.folder)
    try:
        return f"user {pwd.getpwuid(there.st_uid).pw_name} {grp.getgrgid(there.st_gid).gr_name};\n"
    except KeyError:
        return "user root;\n"


def find(site: Site) -> str | None:
    """Where the proxy's program is; None if it is not installed. Debian keeps it where only root's PATH looks."""
    name = site.settings.proxy.command
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/opt/homebrew/bin")


def write(site: Site) -> Path:
    """Write the configuration; returns where."""
    path = site.state / "proxy" / "nginx.conf"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = configuration(site)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    return path


def command(site: Site, program: str) -> list[str]:
    return [program, "-p", str(site.state / "proxy"), "-e", "stderr", "-c", str(write(site))]


def complaints(site: Site, program: str) -> str:
    """What nginx itself says against its configuration, or ""."""
    done = subprocess.run([*command(site, program), "-t"], capture_output=True, text=True, timeout=30, check=False)
    return "" if done.returncode == 0 else done.stderr.strip()
