/** The look of every page: Radix Themes in the reader's own colour scheme. radix-styles.ts says which of its styles are built in. */
import { Theme } from '@radix-ui/themes';
import '@radix-ui/themes/tokens/base.css';
import '@radix-ui/themes/tokens/colors/amber.css';
import '@radix-ui/themes/tokens/colors/cyan.css';
import '@radix-ui/themes/tokens/colors/gray.css';
import '@radix-ui/themes/tokens/colors/green.css';
import '@radix-ui/themes/tokens/colors/red.css';
import '@radix-ui/themes/tokens/colors/slate.css';
import '@radix-ui/themes/components.css';
import '@radix-ui/themes/utilities.css';
import { type ReactNode, useSyncExternalStore } from 'react';

const dark = window.matchMedia('(prefers-color-scheme: dark)');
const isDark = () => dark.matches;

function onChange(listener: () => void) {
  dark.addEventListener('change', listener);
  return () => dark.removeEventListener('change', listener);
}

export function Look({ children }: { children: ReactNode }) {
  return (
    <Theme appearance={useSyncExternalStore(onChange, isDark) ? 'dark' : 'light'} accentColor="cyan" grayColor="slate" panelBackground="solid" radius="medium">
      {children}
    </Theme>
  );
}
