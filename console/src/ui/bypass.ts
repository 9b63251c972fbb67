// Options of a session that let the agent act without asking.

import type { Config, Option } from '../ahp';
import { array, text } from '../store';

// Words with which hosts and agents name such values; agenthost/acp has the same list.
const names = /bypass|yolo|dangerous|full.?access|skip.{0,5}permission|auto.?approve.{0,3}all|allow.?all|trust.?all|never.?ask|^auto.?approve$/i;
const about = /bypass|auto.?approves? (all|every)|without (asking|\w+ approval)|skips? (all )?permission/i;

/** Whether an option with this value skips permissions, by the host's mark or by its words. */
export function skips(name: string, p: Option, value: unknown): boolean {
  if (array(p.bypass).includes(value)) return true;
  if (p.category === 'model' || value === undefined || value === false) return false;
  if (p.type === 'boolean') return !p.readOnly && (names.test(name) || names.test(text(p.title)));
  const i = array(p.enum).indexOf(value);
  return i >= 0 && (names.test(String(value)) || names.test(text(array(p.enumLabels)[i])) || about.test(text(array(p.enumDescriptions)[i])));
}

/** Returns the label of the option with which a session's agent asks for no permission, or ''. */
export function skipping(config: Config | undefined): string {
  for (const [name, p] of Object.entries(config?.schema?.properties ?? {})) {
    if (p && skips(name, p, config?.values?.[name] ?? p.default)) return text(p.title) || name;
  }
  return '';
}
