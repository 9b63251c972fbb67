// Highlights code in a worker. The result is a list of text pieces with their kinds, never markup.

import hljs from 'highlight.js/core';
import bash from 'highlight.js/bash';
import c from 'highlight.js/c';
import cpp from 'highlight.js/cpp';
import csharp from 'highlight.js/csharp';
import css from 'highlight.js/css';
import diff from 'highlight.js/diff';
import dockerfile from 'highlight.js/dockerfile';
import go from 'highlight.js/go';
import graphql from 'highlight.js/graphql';
import ini from 'highlight.js/ini';
import java from 'highlight.js/java';
import javascript from 'highlight.js/javascript';
import json from 'highlight.js/json';
import kotlin from 'highlight.js/kotlin';
import lua from 'highlight.js/lua';
import makefile from 'highlight.js/makefile';
import markdown from 'highlight.js/markdown';
import objectivec from 'highlight.js/objectivec';
import perl from 'highlight.js/perl';
import php from 'highlight.js/php';
import plaintext from 'highlight.js/plaintext';
import powershell from 'highlight.js/powershell';
import protobuf from 'highlight.js/protobuf';
import python from 'highlight.js/python';
import r from 'highlight.js/r';
import ruby from 'highlight.js/ruby';
import rust from 'highlight.js/rust';
import scala from 'highlight.js/scala';
import scss from 'highlight.js/scss';
import sql from 'highlight.js/sql';
import swift from 'highlight.js/swift';
import typescript from 'highlight.js/typescript';
import xml from 'highlight.js/xml';
import yaml from 'highlight.js/yaml';

for (const [name, language] of Object.entries({
  bash, c, cpp, csharp, css, diff, dockerfile, go, graphql, ini, java, javascript, json, kotlin, lua, makefile, markdown, objectivec,
  perl, php, plaintext, powershell, protobuf, python, r, ruby, rust, scala, scss, sql, swift, typescript, xml, yaml,
})) hljs.registerLanguage(name, language);

const most = 200_000; // characters

/** A node of highlight.js's tree, which its types do not name. */
interface Scoped { scope?: string; children: (Scoped | string)[] }

function pieces(node: Scoped, kind: string, into: [string, string][]): void {
  for (const child of node.children) {
    if (typeof child === 'string') into.push([kind, child]);
    else pieces(child, child.scope ?? kind, into);
  }
}

addEventListener('message', ({ data: { id, code, lang } }: MessageEvent) => {
  const out: [string, string][] = [];
  try {
    if (code.length <= most && hljs.getLanguage(lang)) {
      pieces((hljs.highlight(code, { language: lang, ignoreIllegals: true }) as unknown as { _emitter: { rootNode: Scoped } })._emitter.rootNode, '', out);
    }
  } catch {
    out.length = 0; // leave the code plain
  }
  (postMessage as (message: object) => void)({ id, pieces: out });
});
