import { Flex, Text } from '@radix-ui/themes';
import { type Language, LANGUAGES, useTexts } from '../texts/texts';
import { Choice } from './Field';

export function LanguageChoice() {
  const { say, language, setLanguage } = useTexts();
  return (
    <Flex asChild align="center" gap="2">
      <Text as="label" size="2">{say('language')} <Choice value={language} options={LANGUAGES} onChange={(tag) => setLanguage(tag as Language)} /></Text>
    </Flex>
  );
}
