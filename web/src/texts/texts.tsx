/** The page's own words. What the API says is in the language that the user's token names. */
import { createContext, type ReactNode, useCallback, useContext, useEffect, useMemo, useState } from 'react';
import en from './en.json';

export type TextKey = keyof typeof en;
export type Language = 'en' | 'es' | 'fr';

type Catalogue = Record<TextKey, string>;

/** A language that nobody has chosen is not loaded. */
const CATALOGUES: Record<Language, () => Promise<Catalogue>> = {
  en: () => Promise.resolve(en),
  es: () => import('./es.json').then((file) => file.default),
  fr: () => import('./fr.json').then((file) => file.default),
};
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
  return wanted.find((tag): tag is Language => tag in CATALOGUES) ?? 'en';
}

export function TextsProvider({ children }: { children: ReactNode }) {
  const [wanted, setState] = useState(preferred);
  const [shown, setShown] = useState<{ language: Language; catalogue: Catalogue } | null>(null);
  useEffect(() => {
    let current = true;
    const show = (language: Language, catalogue: Catalogue) => {
      if (!current) return;
      document.documentElement.lang = language;
      setShown({ language, catalogue });
    };
    CATALOGUES[wanted]().then((catalogue) => show(wanted, catalogue), () => show('en', en));
    return () => { current = false; };
  }, [wanted]);
  const setLanguage = useCallback((chosen: Language) => {
    localStorage.setItem(STORED, chosen);
    setState(chosen);
  }, []);
  const texts = useMemo<Texts | null>(() => {
    if (!shown) return null;
    const { language, catalogue } = shown;
    const say: Say = (key, values = {}) =>
      catalogue[key].replace(/\{(\w+)\}/g, (_, name: string) => String(values[name] ?? ''));
    return { say, language, setLanguage };
  }, [shown, setLanguage]);
  return texts && <Context value={texts}>{children}</Context>;
}

export function useTexts(): Texts {
  const texts = useContext(Context);
  if (!texts) throw new Error('a component outside of TextsProvider asks for a text');
  return texts;
}
