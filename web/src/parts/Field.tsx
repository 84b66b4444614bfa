/** What a person enters: a text or a choice, under its name. */
import { Box, Text, TextField } from '@radix-ui/themes';
import { ChevronDown } from 'lucide-react';
import type { ComponentProps, ReactNode } from 'react';

/** The name of a field above it. */
export function Field({ label, children }: { label: ReactNode; children: ReactNode }) {
  return <Text as="label" size="2" className="field"><span>{label}</span>{children}</Text>;
}

export function TextEntry({ label, onChange, ...others }: { label: ReactNode; onChange: (value: string) => void } & Omit<ComponentProps<typeof TextField.Root>, 'onChange'>) {
  return <Field label={label}><TextField.Root {...others} onChange={(event) => onChange(event.target.value)} /></Field>;
}

/** One of several: the browser's own list behind the button of Radix, whose list needs styles that our policy forbids. */
export function Choice({ options, onChange, ...others }: {
  options: readonly (readonly [value: string, name: string])[];
  onChange: (value: string) => void;
} & Omit<ComponentProps<'select'>, 'onChange'>) {
  return (
    <Box className="choice">
      <select {...others} className="rt-reset rt-SelectTrigger rt-r-size-2 rt-variant-surface" onChange={(event) => onChange(event.target.value)}>
        {options.map(([value, name]) => <option key={value} value={value}>{name}</option>)}
      </select>
      <ChevronDown size={14} aria-hidden />
    </Box>
  );
}

export function ChoiceEntry({ label, ...others }: { label: ReactNode } & ComponentProps<typeof Choice>) {
  return <Field label={label}><Choice {...others} /></Field>;
}
