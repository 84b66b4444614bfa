import { Button } from '@radix-ui/themes';
import type { ComponentProps } from 'react';

/** A button beside the one that a page is mostly about. */
export function PlainButton(props: ComponentProps<typeof Button>) {
  return <Button type="button" variant="surface" color="gray" {...props} />;
}
