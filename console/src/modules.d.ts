declare module '*.css';
declare module 'highlight.js/*';
declare module '*/keys.js' {
  export const base: URL; // the relay's module for the device's key
  export function stored(): Promise<{ tenant: string; subject: string } | undefined>;
  export function call<T = unknown>(method: string, path: string, json?: unknown): Promise<T>;
}
