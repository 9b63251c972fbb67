#!/usr/bin/env node
// Starts the program for this system, which npm has installed as an optional dependency.
"use strict";

const { spawn } = require("node:child_process");
const { name, ahpProgram } = require("./package.json");

const part = `${name}-${process.platform}-${process.arch}`;
const file = ahpProgram + (process.platform === "win32" ? ".exe" : "");

let path;
try {
  path = require.resolve(`${part}/bin/${file}`);
} catch {
  console.error(`${name}: the package ${part} is not installed. Either there is no build for this system, or npm was told to leave out optional dependencies: install without --omit=optional.`);
  process.exit(1);
}

const child = spawn(path, process.argv.slice(2), { stdio: "inherit" });
const signals = ["SIGINT", "SIGTERM", "SIGHUP"];
for (const signal of signals) process.on(signal, () => child.kill(signal));
child.on("error", (error) => {
  console.error(`${name}: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => {
  if (signal === null) process.exit(code);
  for (const one of signals) process.removeAllListeners(one);
  process.kill(process.pid, signal);
});
