/** The page's own words. What the API says is in the language that the user's token names. */
import { createContext, type ReactNode, useCallback, useContext, useEffect, useMemo, useState } from 'react';
import en from './en.json';
import es from './es.json';
import fr from './fr.json';

export type TextKey = keyof typeof en;
export type Language = 'en' | 'es' | 'fr';

const TEXTS: Record<Language, Record<TextKey, string>> = { en, es, fr };
export const LANGUAGES: [Language, string][] = [
  ['en', 'English'],
  ['es', 'Español'],
  ['fr', 'Français'],
];
const STORED = 'chatelaine.language';

export type Say = (key: TextKey, values?: Record<string, string | number>) => string;

interface Texts {
  say: Say;
  language: Language;
  setLanguage: (language: Language) => void;
}

const Context = createContext<Texts | null>(null);

function preferred(): Language {
  const wanted = [localStorage.getItem(STORED) ?? '', ...navigator.languages].map((tag) => tag.slice(0, 2));
  return wanted.find((tag): tag is Language => tag in TEXTS) ?? 'en';
}

export function TextsProvider({ children }: { children: ReactNode }) {
  const [language, setState] = useState(preferred);
  useEffect(() => {
    document.documentElement.lang = language;
  }, [language]);
  const setLanguage = useCallback((chosen: Language) => {
    localStorage.setItem(STORED, chosen);
    setState(chosen);
  }, []);
  const texts = useMemo<Texts>(() => {
    const say: Say = (key, values = {}) =>
      TEXTS[language][key].replace(/\{(\w+)\}/g, (_, name: string) => String(values[name] ?? ''));
    return { say, language, setLanguage };
  }, [language, setLanguage]);
  return <Context value={texts}>{children}</Context>;
}

export function useTexts(): Texts {
  const texts = useContext(Context);
  if (!texts) throw new Error('a component outside of TextsProvider asks for a text');
  return texts;
}
