/**
 * In place of the package `react-remove-scroll`, which Radix puts around what is modal: it keeps the page behind from scrolling by an
 * element of style, which our policy forbids. Our pages scroll inside of the window, so that nothing is left to keep.
 */
import type { ElementType, ReactNode } from 'react';

export function RemoveScroll({ as: Element = 'div', children }: { as?: ElementType; children: ReactNode }) {
  return <Element>{children}</Element>;
}
