import { Checkbox, Text } from '@radix-ui/themes';

export function CheckEntry({ label, checked, onChange }: { label: string; checked: boolean | 'indeterminate'; onChange: (checked: boolean) => void }) {
  return <Text as="label" size="2" className="check"><Checkbox checked={checked} onCheckedChange={(value) => onChange(value === true)} />{label}</Text>;
}
