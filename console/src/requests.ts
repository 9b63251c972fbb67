// Requests to the open session's host, to its MCP servers, and to the relays.

import { tokenOf } from './accounts';
import type { Read, Result } from './ahp';
import type { Link } from './link';
import { ask, type Answer } from './relay';
import { ROOT, type McpRequest } from './rpc';
import { text } from './store';
import { t } from './language';

/** The parts of the page that its requests use. */
export interface RequestsPage {
  readonly link: Pick<Link, 'live' | 'conn'> | undefined;
  readonly token: string;
}

export class Requests {
  #page: RequestsPage;

  constructor(page: RequestsPage) {
    this.#page = page;
  }

  /** Sends a request to the open session's host. Rejects without a connection. */
  request<M extends string>(method: M, params: object): Promise<Result<M>> {
    const { link } = this.#page;
    if (!link?.live) return Promise.reject(new Error(t`not connected`));
    return link.conn!.request(method, params);
  }

  /** Reads a resource from the host. */
  async read(uri: string): Promise<Read> {
    return this.request('resourceRead', { channel: ROOT, uri });
  }

  /** Sends an MCP server a request. */
  mcp<M extends string>(channel: string, method: M, params: object): McpRequest<Result<M>> {
    const { link } = this.#page;
    if (!link?.live) return { result: Promise.reject(new Error(t`not connected`)), cancel() {} };
    return link.conn!.mcp(channel, method, params);
  }

  mcpNotify(channel: string, method: string, params: object): void {
    const { link } = this.#page;
    if (link?.live) link.conn!.mcpNotify(channel, method, params);
  }

  /** Sends the relay a request. */
  ask<T = object>(method: string, path: string, json?: object): Promise<Answer<T>> {
    return ask(this.#page.token, method, path, json);
  }

  /** Sends a request to a host's relay, with the authority of the host's account. */
  askAt<T = object>(host: string, method: string, path: string, json?: object): Promise<Answer<T>> {
    return ask(tokenOf(host, this.#page.token), method, path, json);
  }

  /** Sends a request to a host's relay. Rejects unless it succeeds. */
  async relayAt<T = object>(host: string, method: string, path: string, json?: object): Promise<T> {
    const { status: said, body } = await this.askAt<T>(host, method, path, json);
    if (said !== 200) throw new Error(text(body?.error) || t`The relay answered ${said}.`);
    return body;
  }
}
