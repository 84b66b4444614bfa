/** The page's own words. The API speaks the language of the user's token, or else the same as the page. */
import { createContext, type ReactNode, useCallback, useContext, useEffect, useMemo, useState } from 'react';
import { credential } from '../api/client';
import { queries } from '../api/queries';
import { LANGUAGE } from '../early';
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

/** The text of a key with its values. A number in `count` takes the text `<key>.one` where the language has one. */
export type Say = (key: TextKey, values?: Record<string, string | number>) => string;

interface Texts {
  say: Say;
  /** The words for a name that the API uses, such as a state; the name itself where there are none. */
  nameOf: (group: string, name: string) => string;
  /** “a, b or c”. */
  either: (names: string[]) => string;
  language: Language;
  setLanguage: (language: Language) => void;
}

const Context = createContext<Texts | null>(null);

function preferred(): Language {
  const wanted = [localStorage.getItem(LANGUAGE) ?? '', ...navigator.languages].map((tag) => tag.slice(0, 2));
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
      const isChange = credential.language !== '';
      credential.language = language;
      // The API's words are in the language of before.
      if (isChange) void queries.invalidateQueries();
      setShown({ language, catalogue });
    };
    CATALOGUES[wanted]().then((catalogue) => show(wanted, catalogue), () => show('en', en));
    return () => { current = false; };
  }, [wanted]);
  const setLanguage = useCallback((chosen: Language) => {
    localStorage.setItem(LANGUAGE, chosen);
    setState(chosen);
  }, []);
  const texts = useMemo<Texts | null>(() => {
    if (!shown) return null;
    const { language, catalogue } = shown;
    const plural = new Intl.PluralRules(language);
    const say: Say = (key, values = {}) => {
      const isOne = typeof values.count === 'number' && plural.select(values.count) === 'one';
      const text = (isOne && catalogue[`${key}.one` as TextKey]) || catalogue[key];
      return text.replace(/\{(\w+)\}/g, (_, name: string) => values[name]?.toLocaleString(language) ?? '');
    };
    const nameOf = (group: string, name: string) => catalogue[`${group}.${name}` as TextKey] ?? name;
    const list = new Intl.ListFormat(language, { type: 'disjunction' });
    const either = (names: string[]) => list.format(names);
    return { say, nameOf, either, language, setLanguage };
  }, [shown, setLanguage]);
  return texts && <Context value={texts}>{children}</Context>;
}

export function useTexts(): Texts {
  const texts = useContext(Context);
  if (!texts) throw new Error('a component outside of TextsProvider asks for a text');
  return texts;
}
