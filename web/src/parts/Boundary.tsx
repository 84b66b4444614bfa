import { Component, type ReactNode } from 'react';

/** What cannot be shown takes nothing else along: `fallback` stands in its place. */
export class Boundary extends Component<{ fallback: ReactNode; children: ReactNode }, { isBroken: boolean }> {
  override state = { isBroken: false };

  static getDerivedStateFromError() {
    return { isBroken: true };
  }

  override render() {
    return this.state.isBroken ? this.props.fallback : this.props.children;
  }
}
