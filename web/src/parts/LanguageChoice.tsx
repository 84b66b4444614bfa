import { type Language, LANGUAGES, useTexts } from '../texts/texts';

export function LanguageChoice() {
  const { say, language, setLanguage } = useTexts();
  return (
    <label className="language">{say('language')}
      <select value={language} onChange={(event) => setLanguage(event.target.value as Language)}>
        {LANGUAGES.map(([tag, name]) => <option key={tag} value={tag}>{name}</option>)}
      </select>
    </label>
  );
}
