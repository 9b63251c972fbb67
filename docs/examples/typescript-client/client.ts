// Prints a host's messages about its root, across drops. It needs a built-in WebSocket: browsers, Deno, Bun and
// Node.js from 22 have one.
//
//   npx esbuild docs/examples/typescript-client/client.ts | node - 'ws://127.0.0.1:8484/ahp/demo?access_token=…'

interface Said { serverSeq?: number; fromSeq?: number }
interface Message { result?: { actions?: Said[]; snapshots?: Said[] }; params?: Said }

let seen = -1;

function request() {
  const common = { channel: 'ahp-root://', clientId: 'typescript-example' };
  const [method, params] = seen < 0
    ? ['initialize', { ...common, protocolVersions: ['0.9.0'], initialSubscriptions: ['ahp-root://'] }]
    : ['reconnect', { ...common, lastSeenServerSeq: seen, subscriptions: ['ahp-root://'] }]; // the host sends the missed actions
  return JSON.stringify({ jsonrpc: '2.0', id: 1, method, params });
}

export function follow(url: string, print: (text: string) => void) {
  const ws = new WebSocket(url);
  ws.onopen = () => ws.send(request());
  ws.onmessage = ({ data }) => {
    print(data);
    const { result, params } = JSON.parse(data) as Message;
    for (const said of [...(result?.actions ?? []), ...(result?.snapshots ?? []), params ?? {}]) {
      seen = Math.max(seen, said.serverSeq ?? said.fromSeq ?? -1);
    }
  };
  ws.onclose = ({ code, reason }) => {
    console.error(code, reason);
    if (code < 4500) setTimeout(follow, 1000, url, print); // else a reconnect would not help
  };
}

follow(process.argv[2], console.log);
