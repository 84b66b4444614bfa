import { IconButton } from '@radix-ui/themes';
import type { ComponentProps } from 'react';

/** A quiet button that shows a picture only. */
export function IconAction({ label, ...others }: { label: string } & ComponentProps<typeof IconButton>) {
  return <IconButton type="button" variant="ghost" color="gray" aria-label={label} title={label} {...others} />;
}
