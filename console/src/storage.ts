// A browser may deny the page its storage, or have none. The page then keeps the values in memory until it is closed.

class Memory {
  #kept = new Map<string, string>();

  getItem(key: string): string | null {
    return this.#kept.get(key) ?? null;
  }

  setItem(key: string, value: string): void {
    this.#kept.set(key, value);
  }

  removeItem(key: string): void {
    this.#kept.delete(key);
  }
}

/** Keeps a value, if the browser has room for it. The page works without. */
export function keep(storage: Storage, key: string, value: string): void {
  try {
    storage.setItem(key, value);
  } catch {
    // The storage is full.
  }
}

for (const name of ['localStorage', 'sessionStorage'] as const) {
  try {
    globalThis[name].getItem('');
  } catch {
    Object.defineProperty(globalThis, name, { value: new Memory(), configurable: true, writable: true });
  }
}
