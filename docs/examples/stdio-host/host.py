"""An AHP host on standard input and output: it counts seconds.

    host-agent run --relay URL --credentials-file FILE -- python3 docs/examples/stdio-host/host.py

It is started once for each client.
"""
import json, sys, threading, time

ROOT = "ahp-root://"
lock, seq = threading.Lock(), 0


def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def count():
    global seq
    while True:
        time.sleep(1)
        with lock:
            seq += 1
            action = {"type": "root/activeSessionsChanged", "activeSessions": seq}
            say(method="action", params={"channel": ROOT, "action": action, "serverSeq": seq})


for line in sys.stdin:
    request = json.loads(line)
    method, id = request.get("method"), request.get("id")
    with lock:
        snapshots = [{"resource": ROOT, "state": {"agents": [], "activeSessions": seq}, "fromSeq": seq}]
        if method == "initialize":
            say(id=id, result={"protocolVersion": "0.9.0", "serverSeq": seq, "snapshots": snapshots})
            threading.Thread(target=count, daemon=True).start()
        elif method == "reconnect":
            say(id=id, result={"type": "snapshot", "snapshots": snapshots})
            threading.Thread(target=count, daemon=True).start()
        elif method == "ping":
            say(id=id, result={})
        elif id is not None:
            say(id=id, error={"code": -32601, "message": f"{method} is not served here"})
