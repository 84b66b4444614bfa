import { QueryClientProvider } from '@tanstack/react-query';
import { StrictMode } from 'react';
import { createRoot } from 'react-dom/client';
import { queries } from './api/queries';
import { App } from './App';
import { SessionProvider } from './signin/session';
import './style/base.css';
import './style/chat.css';
import { TextsProvider } from './texts/texts';

const root = document.getElementById('root');
if (!root) throw new Error('index.html has no element for the page');
// What was caught is shown in its place.
createRoot(root, { onCaughtError: (error) => console.warn(error) }).render(
  <StrictMode>
    <QueryClientProvider client={queries}>
      <TextsProvider>
        <SessionProvider>
          <App />
        </SessionProvider>
      </TextsProvider>
    </QueryClientProvider>
  </StrictMode>,
);
