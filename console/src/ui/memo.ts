// Components redrawn only when a prop changes.

import { Component, h, type Attributes, type ComponentChildren, type FunctionComponent } from 'preact';

export function memo<P extends object>(draw: (props: P) => ComponentChildren): FunctionComponent<P> {
  class Memo extends Component<P> {
    shouldComponentUpdate(next: P) {
      const had = this.props as Record<string, unknown>;
      const now = next as Record<string, unknown>;
      for (const name in now) if (now[name] !== had[name]) return true;
      for (const name in had) if (!(name in now)) return true;
      return false;
    }

    render() {
      return h(draw as FunctionComponent<P>, this.props as unknown as P & Attributes);
    }
  }
  return Memo as unknown as FunctionComponent<P>;
}
