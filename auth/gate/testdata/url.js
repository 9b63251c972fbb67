// Answers for each line, a URI in base64, what Node makes of it: the path that
// new URL sees, decoded, and the one that fileURLToPath does, each in JSON; null
// for an error.
const { fileURLToPath } = require("url");
const attempt = (f) => { try { return f(); } catch { return null; } };
let rest = "";
process.stdin.setEncoding("latin1");
process.stdin.on("data", (data) => {
  const lines = (rest + data).split("\n");
  rest = lines.pop();
  for (const line of lines) {
    const uri = Buffer.from(line, "base64").toString("utf8");
    const url = attempt(() => new URL(uri));
    process.stdout.write(JSON.stringify({
      Host: url && url.host,
      Path: url && attempt(() => decodeURIComponent(url.pathname)),
      Raw: url && url.pathname,
      File: url && attempt(() => fileURLToPath(uri)),
      Windows: url && attempt(() => fileURLToPath(uri, { windows: true })),
    }) + "\n");
  }
});
