"""A mail server for tests: takes mail after STARTTLS and a log-in, and prints each message as a line of JSON."""

import asyncio
import json
import ssl
import sys

from aiosmtpd.smtp import SMTP, AuthResult, LoginPassword


def allowed(server, session, envelope, mechanism, data):
    good = isinstance(data, LoginPassword) and (data.login, data.password) == (b"allotment", b"secret")
    return AuthResult(success=good)


class Printer:
    async def handle_DATA(self, server, session, envelope):
        text = envelope.content.decode("utf-8", "replace")
        if "refuse@" in envelope.rcpt_tos[0]:
            return "550 nobody of that name"
        print(json.dumps({"to": envelope.rcpt_tos, "tls": session.ssl is not None,
                          "authenticated": session.authenticated, "text": text}), flush=True)
        return "250 taken"


async def serve():
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(sys.argv[1], sys.argv[2])

    def made():
        return SMTP(Printer(), hostname="localhost", tls_context=context, require_starttls=True,
                    authenticator=allowed, auth_required=True)

    loop = asyncio.get_running_loop()
    server = await loop.create_server(made, "127.0.0.1", 0)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    # Until whoever started it lets go.
    await loop.run_in_executor(None, sys.stdin.read)


asyncio.run(serve())
