// The site's pages, by task. build.mjs has put the documents beside this file.
import { defineConfig } from "vitepress";

// More contrast for the names of languages, and long words that break.
const style = `
.vp-doc [class*="language-"] > span.lang { color: var(--vp-c-text-2) !important; }
.vp-doc :not(pre) > code { overflow-wrap: anywhere; }
.vp-doc pre { overflow-x: auto; }
.DocSearch-Button-Keys { display: none !important; }
`;

export default defineConfig({
  lang: "en",
  title: "AHP relay",
  description: "Your coding agents on your phone, through a server of your own.",
  base: process.env.SITE_BASE ?? "/",
  cleanUrls: false,
  appearance: true, // light, dark, or the system's
  markdown: {
    theme: { light: "github-light-high-contrast", dark: "github-dark-high-contrast" },
    languageAlias: { Caddyfile: "nginx", caddyfile: "nginx" },
    config: (md) => {
      // Keys scroll a wide block of code, as those with a language.
      md.renderer.rules.code_block = (tokens, i) => `<pre tabindex="0"><code>${md.utils.escapeHtml(tokens[i].content)}</code></pre>\n`;
      // A table's empty corner is no header, for screen readers.
      for (const end of ["open", "close"]) {
        md.renderer.rules[`th_${end}`] = (tokens, i, options, _, self) => {
          const words = tokens[end === "open" ? i + 1 : i - 1];
          if (words.content === "") tokens[i].tag = "td";
          return self.renderToken(tokens, i, options);
        };
      }
    },
  },
  ignoreDeadLinks: "localhostLinks", // the demo's own addresses
  head: [["link", { rel: "icon", href: `${process.env.SITE_BASE ?? "/"}favicon.svg`, type: "image/svg+xml" }], ["style", {}, style]],
  themeConfig: {
    search: { provider: "local" },
    outline: { level: [2, 3], label: "On this page" },
    nav: [
      { text: "Tutorial", link: "/tutorial" },
      { text: "Reference", link: "/reference" },
      { text: "Source", link: process.env.SITE_SOURCE },
    ],
    sidebar: [
      { text: "Start", items: [
        { text: "What it is", link: "/" },
        { text: "Ten-minute tutorial", link: "/tutorial" },
        { text: "Install", link: "/install" },
        { text: "Your first host", link: "/first-host" },
        { text: "Coming from …", link: "/coming-from" },
      ] },
      { text: "Use", items: [
        { text: "Coding agents", link: "/agents" },
        { text: "The console", link: "/console" },
        { text: "Notifications", link: "/notifications" },
        { text: "People and levels", link: "/authority" },
        { text: "VS Code and other clients", link: "/clients" },
        { text: "Canvases and ports", link: "/canvases" },
        { text: "MCP", link: "/mcp" },
        { text: "Troubleshoot", link: "/troubleshooting" },
      ] },
      { text: "Run a server", items: [
        { text: "On a server: recipes", link: "/recipes" },
        { text: "Operate", link: "/operating" },
        { text: "Runbooks", link: "/runbooks" },
        { text: "Upgrade", link: "/upgrade" },
        { text: "Versions", link: "/versions" },
        { text: "Security", link: "/SECURITY" },
        { text: "Sealed mode", link: "/sealed" },
        { text: "Limits", link: "/limits" },
      ] },
      { text: "Reference", items: [
        { text: "Commands and flags", link: "/reference" },
        { text: "Performance", link: "/performance" },
        { text: "Scaling", link: "/scaling" },
        { text: "Faults", link: "/faults" },
        { text: "Known gaps", link: "/rough-edges" },
        { text: "Changelog", link: "/CHANGELOG" },
      ] },
      { text: "Develop", items: [
        { text: "Contribute", link: "/CONTRIBUTING" },
        { text: "Architecture", link: "/ARCHITECTURE" },
        { text: "Release", link: "/RELEASING" },
      ] },
    ],
  },
});
