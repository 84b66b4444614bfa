import js from '@eslint/js';
import hooks from 'eslint-plugin-react-hooks';
import ts from 'typescript-eslint';

export default ts.config(
  { ignores: ['dist', 'node_modules', 'src/api/schema.ts'] },
  js.configs.recommended,
  ...ts.configs.strict,
  {
    files: ['src/**/*.{ts,tsx}'],
    plugins: { 'react-hooks': hooks },
    rules: {
      'react-hooks/rules-of-hooks': 'error',
      '@typescript-eslint/no-unused-vars': ['error', { varsIgnorePattern: '^_', argsIgnorePattern: '^_' }],
      '@typescript-eslint/no-empty-function': 'off',
      'max-lines': ['error', 250],
      'max-lines-per-function': ['error', 70],
      'max-params': ['error', 5],
    },
  },
  {
    files: ['test/**/*.mjs', '*.js'],
    languageOptions: { globals: { process: 'readonly', navigator: 'readonly', URL: 'readonly', URLSearchParams: 'readonly', fetch: 'readonly', console: 'readonly', setTimeout: 'readonly', document: 'readonly', globalThis: 'readonly', innerWidth: 'readonly', sessionStorage: 'readonly', window: 'readonly', MutationObserver: 'readonly', localStorage: 'readonly', location: 'readonly', Buffer: 'readonly' } },
  },
);
