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

for (const name of ['localStorage', 'sessionStorage'] as const) {
  try {
    globalThis[name].getItem('');
  } catch {
    Object.defineProperty(globalThis, name, { value: new Memory(), configurable: true, writable: true });
  }
}
