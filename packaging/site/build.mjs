// Puts README and docs/ into the folder of the site generator, with links that fit there:
// node build.mjs REPOSITORY FOLDER
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { dirname, join, normalize, relative } from "node:path";

const [root, out] = process.argv.slice(2);
const owner = Object.fromEntries(readFileSync(join(root, "packaging/owner.env"), "utf8").split("\n").filter((line) => /^[A-Z]/.test(line)).map((line) => line.split(/=(.*)/)));
const source = owner.SOURCE;
const pages = new Map([["README.md", "index.md"]]);
for (const name of ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "RELEASING.md", "SECURITY.md"]) pages.set(name, name);
for (const name of readdirSync(join(root, "docs"))) if (name.endsWith(".md")) pages.set(`docs/${name}`, name);

rmSync(out, { recursive: true, force: true });
mkdirSync(join(out, ".vitepress"), { recursive: true });
mkdirSync(join(out, "public"));
cpSync(join(root, "packaging/site/config.mjs"), join(out, ".vitepress/config.mjs"));
cpSync(join(root, "console/frames/favicon.svg"), join(out, "public/favicon.svg"));

// link returns where a document's link leads on the site. Pictures come along; other
// files of the repository are at its public address.
function link(from, target) {
  if (/^[a-z]+:/.test(target) || target.startsWith("#")) return target;
  const [path, anchor] = target.split("#");
  const file = normalize(join(dirname(from), path));
  if (!existsSync(join(root, file))) throw new Error(`${from} links to ${file}, which is not there`);
  const page = pages.get(file);
  if (page) return `./${page}${anchor ? `#${anchor}` : ""}`;
  if (/\.(png|svg|webp|gif)$/.test(file)) {
    const copy = join("pictures", relative("docs", file).replaceAll("../", ""));
    cpSync(join(root, file), join(out, copy));
    return `./${copy}`;
  }
  const kind = statSync(join(root, file)).isDirectory() ? "tree" : "blob";
  return `${source}/${kind}/main/${file}${anchor ? `#${anchor}` : ""}`;
}

for (const [from, to] of pages) {
  let code = false; // inside of a fenced block
  const text = readFileSync(join(root, from), "utf8").split("\n").map((line) => {
    if (line.startsWith("```")) code = !code;
    if (code) return line;
    return line
      .replace(/\]\(([^)\s]+)\)/g, (_, target) => `](${link(from, target)})`)
      .replace(/(<img[^>]* src=")([^"]+)"/g, (_, tag, target) => `${tag}${link(from, target)}"`);
  });
  // The documents have placeholders for the owner's addresses.
  const filled = text.join("\n").replaceAll("https://RELEASES", owner.LATEST).replaceAll("https://PACKAGES", owner.PACKAGES).replaceAll("REGISTRY/", `${owner.IMAGES}/`);
  writeFileSync(join(out, to), filled);
}

const config = readFileSync(join(root, "packaging/site/config.mjs"), "utf8");
for (const [from, to] of pages) {
  const at = to === "index.md" ? "/" : `/${to.slice(0, -3)}`;
  if (!config.includes(`link: "${at}"`)) throw new Error(`${from} is on no list of packaging/site/config.mjs`);
}
