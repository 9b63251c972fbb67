// The dialogs of the page. Types only.

import type { Account } from './accounts';
import type { AuthRequired, Resource } from './ahp';
import type { Link } from './link';

/** A dialog without parameters. */
interface Plain { kind: 'new' | 'palette' | 'told' | 'settings' | 'previews' | 'share' | 'lend' | 'find' | 'usage' | 'status' | 'help' }

/** The dialog in which a person signs in for an agent or an MCP server. */
interface SignIn { kind: 'sign-in'; link: Link; who: string; resources: Resource[]; more?: AuthRequired }

/** The dialog that asks before an action that cannot be undone. */
interface Confirm { kind: 'confirm'; title: string; says: string; yes: string; act: () => void }

export type Dialog =
  | Plain | SignIn | Confirm
  | { kind: 'session'; link: Link; session: string }
  | { kind: 'rename'; link: Link; session: string; title: string }
  | { kind: 'mute'; host?: string; session?: string }
  | { kind: 'pair'; link?: string; host?: string }
  | { kind: 'sealed'; link: Link; request?: string }
  | { kind: 'account'; first?: Account };
