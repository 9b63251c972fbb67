"""Prints a host's messages about its root, across drops (pip install websockets, or Debian's python3-websockets):

    python3 docs/examples/python-client/client.py 'ws://127.0.0.1:8484/ahp/demo?access_token=…'
"""
import asyncio, json, sys
import websockets


def request(seen):
    params = {"channel": "ahp-root://", "clientId": "python-example"}
    if seen < 0:
        params |= {"protocolVersions": ["0.9.0"], "initialSubscriptions": ["ahp-root://"]}
        return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    params |= {"lastSeenServerSeq": seen, "subscriptions": ["ahp-root://"]}  # the host sends the missed actions
    return {"jsonrpc": "2.0", "id": 1, "method": "reconnect", "params": params}


async def main(url):
    seen = -1
    while True:
        try:
            async with websockets.connect(url, max_size=None) as ws:  # states are large
                await ws.send(json.dumps(request(seen)))
                async for text in ws:
                    print(text, flush=True)
                    message = json.loads(text)
                    result = message.get("result") or {}
                    for said in result.get("actions", []) + result.get("snapshots", []) + [message.get("params", {})]:
                        seen = max(seen, said.get("serverSeq", said.get("fromSeq", -1)))
        except websockets.ConnectionClosed as closed:
            if closed.rcvd and closed.rcvd.code >= 4500:  # a reconnect would not help
                sys.exit(str(closed))
            print(closed, file=sys.stderr)
        except OSError as error:
            print(error, file=sys.stderr)
        await asyncio.sleep(1)


asyncio.run(main(sys.argv[1]))
