// Reads and writes records in a database of this browser.

import { isRegistered } from './registered';

/**
 * Acts on a store of a database, both made when they are first used. A record for the account of a host is
 * written only while the browser has the account: its removal, which erases afterwards, is final.
 */
export async function record<T>(name: string, store: string, mode: IDBTransactionMode, act: (store: IDBObjectStore) => IDBRequest<T>, host = ''): Promise<T> {
  const db = await new Promise<IDBDatabase>((resolve, reject) => {
    const open = indexedDB.open(name, 1);
    open.onupgradeneeded = () => open.result.createObjectStore(store);
    open.onsuccess = () => resolve(open.result);
    open.onerror = () => reject(open.error);
  });
  try {
    return await new Promise((resolve, reject) => {
      const transaction = db.transaction(store, mode);
      const objects = transaction.objectStore(store);
      let request: IDBRequest<T>;
      if (host.includes('@')) {
        objects.count().onsuccess = () => { // the transaction runs now, alone
          if (isRegistered(host)) request = act(objects);
          else transaction.abort();
        };
      } else request = act(objects);
      transaction.oncomplete = () => resolve(request.result);
      transaction.onabort = transaction.onerror = () => reject(transaction.error ?? new Error(''));
    });
  } finally {
    db.close();
  }
}
