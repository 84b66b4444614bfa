import { Component, type ReactNode } from 'react';
import { useTexts } from '../texts/texts';

/** Around a part of the page that is loaded when it is opened. Without a network, or after an update, it may not be there. */
export class PartBoundary extends Component<{ children: ReactNode }, { hasFailed: boolean }> {
  override state = { hasFailed: false };

  static getDerivedStateFromError() {
    return { hasFailed: true };
  }

  override render() {
    return this.state.hasFailed ? <NotLoaded /> : this.props.children;
  }
}

function NotLoaded() {
  const { say } = useTexts();
  return (
    <main className="page">
      <p className="failure" role="alert">{say('error.part')} <button type="button" className="quiet" onClick={() => window.location.reload()}>{say('reload')}</button></p>
    </main>
  );
}
